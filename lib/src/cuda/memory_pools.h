/*
 * Stream-ordered allocations come from pools, and what a pool takes from the device is its reserve: it grows before a
 * request that does not fit, and stays behind when memory is freed. So the reserve is what is counted, not the
 * requests.
 *
 * memory_pools.c keeps the pools and their reserves; pools.c has the calls that allocate from them.
 */
#pragma once

#include "device/devices.h"

struct pool {
  CUmemoryPool handle;     /* NULL: a free place */
  struct device *device;   /* NULL: of host memory, which is not counted */
  uint64_t reserved_bytes; /* last read, and counted in the ledger */
  uint64_t readings;
  int users;    /* threads that ask the driver about it on their own account */
  bool leaving; /* being destroyed: its handle may soon be another pool's */
};

/* NULL: not known, or being destroyed. */
struct pool *pools_find(CUmemoryPool handle);

/* A pool of that device has been made. */
void pools_add(CUmemoryPool handle, struct device *device);

/* The pool a thread allocates from. One that we have not seen made is the current device's. NULL when there are too
 * many. */
struct pool *pools_know(CUmemoryPool handle, struct device *current);

/* The next pool of the device from *place on; it is not destroyed until let_go. */
struct pool *pools_take_hold(const struct device *device, int *place);
void pools_let_go(struct pool *pool);

/* Waits for other threads' questions about the pool, but not for ever. Its result, or NULL, goes to pools_end_destroy.
 */
struct pool *pools_begin_destroy(CUmemoryPool handle);
void pools_end_destroy(struct pool *pool, bool destroyed);

/* Does the request lie in memory that this thread has seen counted? For requests in two pages at most. */
bool pools_is_counted(uint64_t address, uint64_t size);
void pools_note_counted(uint64_t address, uint64_t size);

/* Memory may have gone back to the driver: what threads know is good no more. */
void pools_note_shrinking(void);

/* Counts what the driver has answered. Lowers the count only if `shrinking` was announced before the driver was asked,
 * so that a thread that has allocated since has asked too, and only if none has (`readings` is unchanged). Else false
 * where the pool has less than is counted. */
bool pools_count_reserve(struct pool *pool, CUmemoryPool handle, uint64_t reserved_bytes, bool shrinking,
                         uint64_t readings);

/* Counts the pool's reserve as it is now: too much for a moment perhaps, but never too little. False when it may be too
 * much, since another thread has done the same. */
bool pools_reread(struct pool *pool, CUmemoryPool handle);

/* The bytes of the pool's reserve that are not in use. */
uint64_t pools_idle_bytes(CUmemoryPool handle);

/* Memory that pools of the device keep in reserve: reread, or first given back to the driver. False when more may be
 * counted now than they have. */
enum pools { POOLS_REREAD, POOLS_TRIM };
bool pools_settle(struct device *device, enum pools what);
void pools_after_wait(void);
