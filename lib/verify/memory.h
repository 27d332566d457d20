/* The ways to take device memory, each until it is refused. */
#pragma once

#include <stddef.h>

struct memory_path {
  const char *name;
  void (*run)(const struct memory_path *path, size_t chunk_bytes);
  int (*take)(size_t bytes, void **piece); /* the driver's answer; 0 with a piece, or else an error */
  void (*give_back)(void *piece);
};

/* Ends with an entry without a name. */
extern const struct memory_path memory_paths[];

/* The size of its device as the program is told. */
void memory_show_view(void);
