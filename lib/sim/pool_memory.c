#include "pool_memory.h"

#include "device_memory.h"

CUresult pool_allocate(struct pool *pool, struct context *context, size_t size, CUdeviceptr *address) {
  uintptr_t base;
  if (size > sim_config.devices[pool->device].memory_bytes || !pool_reserve(pool, size))
    return CUDA_ERROR_OUT_OF_MEMORY;
  FORWARD_IF_ERROR(memory_allocate(context, pool, size, &base));
  pool_use(pool, size);
  *address = base;
  return CUDA_SUCCESS;
}

static void empty_of_device(void *object, void *device) {
  struct pool *pool = object;
  if (pool->device != *(unsigned *)device)
    return;
  memory_delete_of_pool(pool);
  pool_empty(pool);
}

void pools_empty_device(unsigned device) {
  handle_visit(HANDLE_POOL, empty_of_device, &device);
}
