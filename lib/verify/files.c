#include "files.h"

#include <elf.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#define MOST_DESCRIPTORS 1024

struct content {
  char *bytes;
  size_t size;
};

/* Yields a private copy, which may be changed. */
static bool read_all(const char *path, struct content *content) {
  int file = open(path, O_RDONLY | O_CLOEXEC);
  if (file < 0)
    return false;
  off_t size = lseek(file, 0, SEEK_END); /* fstat is another symbol in newer C libraries */
  bool found = size > 0;
  if (found) {
    content->size = (size_t)size;
    content->bytes = mmap(NULL, content->size, PROT_READ | PROT_WRITE, MAP_PRIVATE, file, 0);
    found = content->bytes != MAP_FAILED;
  }
  close(file);
  return found;
}

/* The first mapping of a file, and so its beginning. */
static char *mapping_of(const char *part, char path[FILE_PATH]) {
  char line[FILE_PATH + 128];
  unsigned long begin = 0;
  FILE *maps = fopen("/proc/self/maps", "re");
  while (maps != NULL && fgets(line, sizeof line, maps) != NULL) {
    char *name = strchr(line, '/');
    if (name == NULL || strstr(name, part) == NULL)
      continue;
    name[strcspn(name, "\n")] = '\0';
    snprintf(path, FILE_PATH, "%s", name);
    begin = strtoul(line, NULL, 16);
    break;
  }
  if (maps != NULL)
    fclose(maps);
  return (char *)begin; // NOLINT
}

bool file_mapped(const char *part, char path[FILE_PATH]) {
  return mapping_of(part, path) != NULL;
}

static void replace(struct content *content, const char *text, const char *by) {
  size_t length = strlen(text);
  for (size_t i = 0; i + length <= content->size; i++)
    if (memcmp(content->bytes + i, text, length) == 0)
      memcpy(content->bytes + i, by, length);
}

bool file_copy(const char *from, const char *to, const char *text, const char *by, unsigned mode) {
  struct content content;
  if (!read_all(from, &content))
    return false;
  if (text != NULL)
    replace(&content, text, by);
  int file = open(to, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0700);
  bool done = file >= 0 && write(file, content.bytes, content.size) == (ssize_t)content.size && fchmod(file, mode) == 0;
  if (file >= 0)
    close(file);
  munmap(content.bytes, content.size);
  return done;
}

static void *symbol_in(const struct content *content, const char *symbol, char *base) {
  const Elf64_Ehdr *header = (const void *)content->bytes;
  const Elf64_Shdr *sections = (const void *)(content->bytes + header->e_shoff);
  for (int i = 0; i < header->e_shnum; i++) {
    if (sections[i].sh_type != SHT_DYNSYM)
      continue;
    const Elf64_Sym *symbols = (const void *)(content->bytes + sections[i].sh_offset);
    const char *names = content->bytes + sections[sections[i].sh_link].sh_offset;
    for (size_t k = 0; k < sections[i].sh_size / sizeof *symbols; k++)
      if (symbols[k].st_value != 0 && strcmp(names + symbols[k].st_name, symbol) == 0)
        return base + symbols[k].st_value;
  }
  return NULL;
}

void *file_symbol(const char *part, const char *symbol) {
  char path[FILE_PATH];
  struct content content;
  char *base = mapping_of(part, path);
  if (base == NULL || !read_all(path, &content))
    return NULL;
  void *found = symbol_in(&content, symbol, base);
  munmap(content.bytes, content.size);
  return found;
}

bool file_loader(char path[FILE_PATH]) {
  struct content content;
  bool found = false;
  if (!read_all("/proc/self/exe", &content))
    return false;
  const Elf64_Ehdr *header = (const void *)content.bytes;
  const Elf64_Phdr *parts = (const void *)(content.bytes + header->e_phoff);
  for (int i = 0; i < header->e_phnum && !found; i++)
    if (parts[i].p_type == PT_INTERP) {
      snprintf(path, FILE_PATH, "%s", content.bytes + parts[i].p_offset);
      found = true;
    }
  munmap(content.bytes, content.size);
  return found;
}

bool file_write(const char *path, long offset, int byte, size_t size) {
  char block[FILE_PATH];
  int file = open(path, O_WRONLY | O_CLOEXEC);
  if (file < 0 || size > sizeof block)
    return false;
  memset(block, byte, size);
  bool done = pwrite(file, block, size, offset) == (ssize_t)size;
  close(file);
  return done;
}

bool file_fill(const char *path, int byte) {
  char block[FILE_PATH];
  int file = open(path, O_WRONLY | O_CLOEXEC);
  if (file < 0)
    return false;
  memset(block, byte, sizeof block);
  off_t size = lseek(file, 0, SEEK_END);
  bool done = size > 0;
  for (off_t at = 0; done && at < size; at += (off_t)sizeof block)
    done = pwrite(file, block, size - at < (off_t)sizeof block ? (size_t)(size - at) : sizeof block, at) > 0;
  close(file);
  return done;
}

void file_close_all(const char *path) {
  char link[64], target[FILE_PATH];
  for (int file = 3; file < MOST_DESCRIPTORS; file++) {
    snprintf(link, sizeof link, "/proc/self/fd/%d", file);
    ssize_t size = readlink(link, target, sizeof target - 1);
    if (size > 0 && (target[size] = '\0', strcmp(target, path) == 0))
      close(file);
  }
}
