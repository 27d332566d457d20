#include "device_memory.h"

#include <stdlib.h>

#include "blocks.h"
#include "contexts.h"
#include "graph_memory.h"
#include "limits.h"
#include "pools.h"
#include "shared_memory.h"
#include "state.h"

static struct block **blocks_of(struct context *context, struct pool *pool) {
  return pool ? &pool->blocks : &context->blocks;
}

/* A pool has paid already; what a context owns is charged here. */
static struct region *new_region(enum region_kind kind, struct context *context, struct pool *pool, size_t size) {
  uint64_t charge = pool ? 0 : round_up(size, DEVICE_PAGE);
  if (charge && !pools_take_memory(context->device, charge))
    return NULL;
  struct region *region = region_new(kind, size, KEEP_IF_SMALL, false);
  if (!region) {
    state_release(context->device, charge);
    return NULL;
  }
  region->device = pool ? pool->device : context->device;
  region->charged = charge;
  region->context = pool ? NULL : context;
  region->pool = pool;
  return region;
}

static void delete_region(struct region *region) {
  if (region->block)
    block_delete(region->block);
  bool passed_on = region->shared_id && shared_memory_give_up(region->shared_id);
  if (region->charged && !passed_on)
    state_release(region->device, region->charged);
  region_delete(region);
}

CUresult memory_allocate(struct context *context, struct pool *pool, size_t size, uintptr_t *address) {
  if (size > SMALL_LIMIT) {
    struct region *region = new_region(REGION_DEVICE, context, pool, size);
    if (region)
      *address = region->base;
    return region ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
  }
  struct block **blocks = blocks_of(context, pool);
  *address = block_allocate(blocks, size);
  if (*address)
    return CUDA_SUCCESS;
  struct region *region = new_region(REGION_BLOCK, context, pool, DEVICE_PAGE);
  if (!region)
    return CUDA_ERROR_OUT_OF_MEMORY;
  if (!block_add(blocks, region)) {
    delete_region(region);
    return CUDA_ERROR_OUT_OF_MEMORY;
  }
  *address = block_allocate(blocks, size);
  return CUDA_SUCCESS;
}

bool memory_find(uintptr_t address, struct allocation *allocation) {
  struct region *region = region_find(address);
  if (!region)
    return false;
  *allocation = (struct allocation){region, region->base, region->size};
  if (region->kind == REGION_GRAPH)
    return region->live;
  return !region->block || block_find(region->block, address, &allocation->base, &allocation->size);
}

void memory_free(const struct allocation *allocation) {
  struct region *region = allocation->region;
  struct pool *pool = region->pool;
  if (region->kind == REGION_GRAPH) {
    graph_memory_free(region);
    return;
  }
  if (!region->block || block_free(region->block, allocation->base))
    delete_region(region);
  if (pool)
    pool_return(pool, allocation->size);
}

static void delete_if_of(struct region *region, void *context) {
  if (region->context == context)
    delete_region(region);
}

void memory_delete_of(const struct context *context) {
  region_visit(delete_if_of, (void *)context);
}

static void delete_if_of_pool(struct region *region, void *pool) {
  if (region->pool == pool)
    delete_region(region);
}

void memory_delete_of_pool(struct pool *pool) {
  region_visit(delete_if_of_pool, pool);
}
