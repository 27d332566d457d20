/* The reserves of pools, as the driver says. */
#include "cuda/graph_memory.h"
#include "cuda/host_memory.h"
#include "cuda/memory.h"
#include "cuda/memory_pools.h"
#include "device/capture.h"

static bool ask(CUmemoryPool handle, CUmemPool_attribute attribute, cuuint64_t *bytes) {
  CUstreamCaptureMode mode = capture_relax();
  CUresult result = real.cuMemPoolGetAttribute(handle, attribute, bytes);
  capture_restore(mode);
  return result == CUDA_SUCCESS;
}

uint64_t pools_idle_bytes(CUmemoryPool handle) {
  cuuint64_t reserved_bytes, used_bytes;
  bool answered = ask(handle, CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT, &reserved_bytes) &&
                  ask(handle, CU_MEMPOOL_ATTR_USED_MEM_CURRENT, &used_bytes);
  return answered && reserved_bytes > used_bytes ? reserved_bytes - used_bytes : 0;
}

bool pools_reread(struct pool *pool, CUmemoryPool handle) {
  cuuint64_t reserved_bytes;
  if (!ask(handle, CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT, &reserved_bytes))
    return false;
  if (pools_count_reserve(pool, handle, reserved_bytes, false, 0))
    return true;
  pools_note_shrinking();
  uint64_t readings = __atomic_load_n(&pool->readings, __ATOMIC_SEQ_CST);
  return ask(handle, CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT, &reserved_bytes) &&
         pools_count_reserve(pool, handle, reserved_bytes, true, readings);
}

static bool settle(const struct device *device, enum pools what) {
  bool settled = true;
  int place = 0;
  struct pool *pool;
  while ((pool = pools_take_hold(device, &place)) != NULL) {
    if (what == POOLS_TRIM)
      real.cuMemPoolTrimTo(pool->handle, 0);
    settled &= pools_reread(pool, pool->handle);
    pools_let_go(pool);
  }
  return settled;
}

bool pools_settle(struct device *device, enum pools what) {
  bool settled = settle(device, what);
  graph_memory_settle(device, what);
  return settled;
}

/* Where the program waits, the driver takes back what pools do not need. */
void pools_after_wait(void) {
  const struct device *device;
  host_memory_collect();
  for (int i = 0; (device = devices_at(i)) != NULL; i++)
    settle(device, POOLS_REREAD);
}
