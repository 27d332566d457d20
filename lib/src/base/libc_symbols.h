/* The C library's dlopen, dlsym and dlvsym, found in its own symbol table, since we export all three ourselves. */
#pragma once

#include <stdbool.h>

void *libc_dlopen(const char *name, int flags);
void *libc_dlsym(void *handle, const char *name);

typedef void *dlopen_function(const char *path, int flags);
typedef void *dlsym_function(void *handle, const char *name);
typedef void *dlvsym_function(void *handle, const char *name, const char *version);

/* Never NULL: without a C library that has them, they find nothing. */
dlopen_function *libc_find_dlopen(void);
dlsym_function *libc_find_dlsym(void);
dlvsym_function *libc_find_dlvsym(void);

/* The first definition of a function after the object that `code` is in, in the order of loading; NULL: none. */
void *libc_find_after(const void *code, const char *name);

/* fstat by the kernel: glibc 2.33 has given it a new symbol, which older ones lack. */
struct stat;
bool libc_file_status(int file, struct stat *status);

/* Comparisons of names without the C library. A sanitizer has a strcmp of its own, and asks dlsym for the real one: on
 * the way through our dlsym nothing may be called that can be replaced so. */

static inline bool text_begins_with(const char *text, const char *prefix) {
  while (*prefix != '\0')
    if (*text++ != *prefix++)
      return false;
  return true;
}

static inline bool text_equals(const char *a, const char *b) {
  while (*a != '\0' && *a == *b)
    a++, b++;
  return *a == *b;
}
