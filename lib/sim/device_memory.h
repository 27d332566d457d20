/* Device memory: what it costs, who has it. */
#pragma once

#include "cuda_api.h"
#include "regions.h"

/* An allocation in device memory: its own 2 MiB pages above 1 MiB, else a share of a block. The owner of the
 * blocks and of the region is a context or, when pool is not NULL, the pool, which has paid for the memory. */
CUresult memory_allocate(struct context *context, struct pool *pool, size_t size, uintptr_t *address);

/* The beginning of an allocation of any kind, found by an address in it. False when there is none. */
struct allocation {
  struct region *region;
  uintptr_t base;
  size_t size;
};
bool memory_find(uintptr_t address, struct allocation *allocation);

/* Gives an allocation in device memory back. */
void memory_free(const struct allocation *allocation);

/* Gives back all that goes with a context, or that a pool has handed out. */
void memory_delete_of(const struct context *context);
void memory_delete_of_pool(struct pool *pool);
