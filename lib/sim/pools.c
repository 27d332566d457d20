#include "pools.h"

#include <stdlib.h>

#include "limits.h"
#include "state.h"

#define STEP_BYTES (32 * MIB)
#define ROUNDING 512

static struct pool *default_pools[SIM_MAX_DEVICES];
static bool something_to_give_back;

struct pool *pool_new(unsigned device) {
  struct pool *pool = calloc(1, sizeof *pool);
  if (pool)
    pool->handle = handle_new(HANDLE_POOL, pool);
  if (!pool || !pool->handle) {
    free(pool);
    return NULL;
  }
  pool->device = device;
  pool->reuse[0] = pool->reuse[1] = pool->reuse[2] = 1;
  return pool;
}

struct pool *pool_default(unsigned device) {
  if (!default_pools[device]) {
    default_pools[device] = pool_new(device);
    if (default_pools[device])
      default_pools[device]->is_default = true;
  }
  return default_pools[device];
}

static void delete_pool(struct pool *pool) {
  state_release(pool->device, pool->reserved_bytes);
  handle_delete(pool->handle);
  free(pool);
}

void pool_destroy(struct pool *pool) {
  pool->destroyed = true;
  if (pool->used_bytes == 0)
    delete_pool(pool);
}

bool pools_take_memory(unsigned device, uint64_t bytes) {
  return limits_reserve(device, bytes) || (pools_trim_device(device) && limits_reserve(device, bytes));
}

/* The bytes that an allocation takes from its pool. */
static uint64_t rounded(size_t size) {
  return round_up(size, ROUNDING);
}

static bool try_reserve(struct pool *pool, uint64_t target) {
  if (!limits_reserve(pool->device, target - pool->reserved_bytes))
    return false;
  pool->reserved_bytes = target;
  return true;
}

bool pool_reserve(struct pool *pool, size_t size) {
  uint64_t needed = pool->used_bytes + rounded(size);
  uint64_t target = round_up(needed, STEP_BYTES);
  something_to_give_back = true;
  if (needed <= pool->reserved_bytes)
    return true;
  if (pool->maximum_bytes && target > pool->maximum_bytes)
    return false;
  if (try_reserve(pool, target))
    return true;
  pools_trim_device(pool->device); /* this pool too */
  return try_reserve(pool, target);
}

void pool_use(struct pool *pool, size_t size) {
  pool->used_bytes += rounded(size);
  pool->used_high_bytes = max_u64(pool->used_high_bytes, pool->used_bytes);
  pool->reserved_high_bytes = max_u64(pool->reserved_high_bytes, pool->reserved_bytes);
}

void pool_return(struct pool *pool, size_t size) {
  pool->used_bytes -= rounded(size);
  something_to_give_back = true;
  if (pool->destroyed && pool->used_bytes == 0)
    delete_pool(pool);
}

/* Whole steps only. */
bool pool_trim(struct pool *pool, uint64_t keep_bytes) {
  uint64_t target = round_up(max_u64(pool->used_bytes, min_u64(keep_bytes, pool->reserved_bytes)), STEP_BYTES);
  if (target >= pool->reserved_bytes)
    return false;
  state_release(pool->device, pool->reserved_bytes - target);
  pool->reserved_bytes = target;
  return true;
}

static void give_back(void *object, void *argument) {
  struct pool *pool = object;
  (void)argument;
  pool_trim(pool, pool->release_threshold_bytes);
}

void pools_give_back_unused(void) {
  if (something_to_give_back)
    handle_visit(HANDLE_POOL, give_back, NULL);
  something_to_give_back = false;
}

struct trimming {
  unsigned device;
  bool any;
};

static void trim_of_device(void *object, void *argument) {
  struct pool *pool = object;
  struct trimming *trimming = argument;
  if (pool->device == trimming->device && pool_trim(pool, 0))
    trimming->any = true;
}

bool pools_trim_device(unsigned device) {
  struct trimming trimming = {.device = device};
  handle_visit(HANDLE_POOL, trim_of_device, &trimming);
  return trimming.any;
}

void pool_empty(struct pool *pool) {
  pool->used_bytes = 0;
  pool_trim(pool, 0);
  if (pool->destroyed)
    delete_pool(pool);
}
