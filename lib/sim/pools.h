/* Stream-ordered memory pools. A pool takes device memory in steps of 32 MiB and keeps what it does not use, up to its
 * release threshold, when the program synchronises. */
#pragma once

#include "cuda_api.h"
#include "handles.h"

struct block;

struct pool {
  CUmemoryPool handle;
  unsigned device;
  bool is_default;
  bool destroyed; /* by the program, while some of its memory is in use */
  uint64_t reserved_bytes, reserved_high_bytes;
  uint64_t used_bytes, used_high_bytes;
  uint64_t release_threshold_bytes;
  uint64_t maximum_bytes; /* 0: none */
  int reuse[3];           /* the three reuse attributes: kept, without effect */
  struct block *blocks;
};

/* NULL when there is no memory. */
struct pool *pool_new(unsigned device);
struct pool *pool_default(unsigned device);

/* Destroys a pool, or lets it live until the last of its memory is given back. */
void pool_destroy(struct pool *pool);

/* Sees to it that an allocation of this size fits into what a pool has reserved; false when that cannot be. */
bool pool_reserve(struct pool *pool, size_t size);

/* Accounts for memory of a pool that is handed out, or given back. */
void pool_use(struct pool *pool, size_t size);
void pool_return(struct pool *pool, size_t size);

/* All that it has handed out is gone. */
void pool_empty(struct pool *pool);

/* Gives back what is reserved but not used, down to a size. Returns whether that was anything. */
bool pool_trim(struct pool *pool, uint64_t keep_bytes);

/* Takes memory of a device for this process; pools first give back what they do not use. */
bool pools_take_memory(unsigned device, uint64_t bytes);

/* At a synchronisation. */
void pools_give_back_unused(void);

/* When the device is full: all that this process's pools do not use. Returns whether that was anything. */
bool pools_trim_device(unsigned device);
