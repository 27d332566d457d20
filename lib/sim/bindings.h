/* Tiles of sparse arrays and multicast objects hold physical memory, as handles and mappings do. Nothing is transferred
 * by them. */
#pragma once

#include "vmm.h"

struct binding {
  struct binding *next;
  struct physical *physical;
  CUarrayMapInfo place; /* a tile's part of the array */
  unsigned device;      /* a multicast object's */
  size_t offset, size;
};

/* Adds a copy of the binding to a list, or takes one out; false without memory. */
bool bind_memory(struct binding **bindings, const struct binding *model);
void unbind_memory(struct binding **link);

/* Lets go of all. */
void bindings_end(struct binding **bindings);
