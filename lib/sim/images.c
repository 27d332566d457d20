#include "images.h"

#include <stddef.h>
#include <stdlib.h>
#include <string.h>

static uint64_t array_bytes(const char *statement, const char *end) {
  const char *bracket = memchr(statement, '[', (size_t)(end - statement));
  return bracket && memmem(statement, (size_t)(bracket - statement), ".b8", 3) ? strtoull(bracket + 1, NULL, 10) : 0;
}

uint64_t image_global_bytes(const void *image) {
  const char *text = image;
  uint64_t bytes = 0;
  if (!text || strncmp(text, ".version", 8) != 0)
    return 0;
  for (const char *found = text; (found = strstr(found, ".global ")) != NULL; found += 8) {
    const char *end = strchr(found, ';');
    if (end)
      bytes += array_bytes(found, end);
  }
  return bytes;
}
