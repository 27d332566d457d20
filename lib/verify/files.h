/* Work on files for the ways past the limits: copies, symbol tables, the loader's name. */
#pragma once

#include <stdbool.h>
#include <stddef.h>

#define FILE_PATH 4096

/* The path of a mapped file whose name has this in it. */
bool file_mapped(const char *part, char path[FILE_PATH]);

/* Copies a file. Where `text` is not NULL, it is replaced in it by another one of the same length. Sets errno. */
bool file_copy(const char *from, const char *to, const char *text, const char *by, unsigned mode);

/* The address of a symbol of a mapped library by the library's own table, or NULL. */
void *file_symbol(const char *part, const char *symbol);

/* The path of the dynamic loader that this program names. */
bool file_loader(char path[FILE_PATH]);

/* Overwrites all of a file with a byte. Sets errno. */
bool file_fill(const char *path, int byte);

/* Overwrites so much of it with a byte. */
bool file_write(const char *path, long offset, int byte, size_t size);

/* Closes whatever this process has open of a file. */
void file_close_all(const char *path);
