/* Comparisons of names without the C library. A sanitizer has a strcmp of its own, and asks dlsym for the real one: on
 * the way through our dlsym nothing may be called that can be replaced so. */
#ifndef VGPU_TEXT_H
#define VGPU_TEXT_H

#include <stdbool.h>

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

#endif
