/* The calls that allocate from pools, and that manage pools. */
#include "capture.h"
#include "device_memory.h"
#include "graph_memory.h"
#include "graph_runs.h"
#include "pool_memory.h"
#include "stream_work.h"
#include "visible.h"

static CUmemoryPool current_pools[SIM_MAX_DEVICES]; /* NULL: the default pool */

static struct pool *find_pool(CUmemoryPool handle) {
  struct pool *pool = handle_object(HANDLE_POOL, handle);
  return pool && !pool->destroyed ? pool : NULL;
}

static struct pool *current_pool(unsigned device) {
  struct pool *pool = find_pool(current_pools[device]);
  return pool ? pool : pool_default(device);
}

static CUresult capture_alloc(struct stream *stream, unsigned device, size_t size, CUdeviceptr *address) {
  struct region *memory = size > 0 ? graph_memory_for(stream->capture->graph, device, size) : NULL;
  if (!memory)
    return size > 0 ? CUDA_ERROR_OUT_OF_MEMORY : CUDA_ERROR_INVALID_VALUE;
  graph_memory_hold(memory);
  CUresult result = capture_add(stream, (struct graph_node){.type = CU_GRAPH_NODE_TYPE_MEM_ALLOC, .memory = memory});
  if (result == CUDA_SUCCESS)
    *address = memory->base;
  graph_memory_let_go(memory);
  return result;
}

static CUresult capture_free(struct stream *stream, CUdeviceptr address) {
  struct region *memory = region_find(address);
  if (!memory || memory->kind != REGION_GRAPH || memory->base != address)
    return CUDA_ERROR_INVALID_VALUE;
  return capture_add(stream, (struct graph_node){.type = CU_GRAPH_NODE_TYPE_MEM_FREE, .memory = memory});
}

static CUresult allocate(CUdeviceptr *address, size_t size, const CUmemoryPool *handle, CUstream stream_handle,
                         enum default_stream default_stream) {
  struct stream *stream;
  FORWARD_IF_ERROR(stream_enter(stream_handle, default_stream, &stream));
  struct pool *pool = handle ? find_pool(*handle) : current_pool(stream->context->device);
  if (!address || !pool)
    return driver_leave(CUDA_ERROR_INVALID_VALUE);
  if (stream->capture)
    return driver_leave(capture_alloc(stream, pool->device, size, address));
  if (size == 0) {
    *address = 0;
    return driver_leave(CUDA_SUCCESS);
  }
  return driver_leave(pool_allocate(pool, stream->context, size, address));
}

static CUresult cuMemAllocAsync_on(CUdeviceptr *address, size_t size, CUstream stream,
                                   enum default_stream default_stream) {
  return allocate(address, size, NULL, stream, default_stream);
}

static CUresult cuMemAllocFromPoolAsync_on(CUdeviceptr *address, size_t size, CUmemoryPool pool, CUstream stream,
                                           enum default_stream default_stream) {
  return allocate(address, size, &pool, stream, default_stream);
}

STREAM_API(cuMemAllocAsync, cuMemAllocAsync_ptsz, (CUdeviceptr * address, size_t size, CUstream stream), address, size,
           stream)
STREAM_API(cuMemAllocFromPoolAsync, cuMemAllocFromPoolAsync_ptsz,
           (CUdeviceptr * address, size_t size, CUmemoryPool pool, CUstream stream), address, size, pool, stream)

/* The memory is free for the pool's next allocation at once: simulated kernels touch no memory. */
static CUresult cuMemFreeAsync_on(CUdeviceptr address, CUstream handle, enum default_stream default_stream) {
  struct stream *stream;
  struct allocation allocation;
  FORWARD_IF_ERROR(stream_enter(handle, default_stream, &stream));
  if (address == 0)
    return driver_leave(CUDA_SUCCESS);
  if (stream->capture)
    return driver_leave(capture_free(stream, address));
  if (!memory_find(address, &allocation) || allocation.base != address || allocation.region->kind > REGION_GRAPH)
    return driver_leave(CUDA_ERROR_INVALID_VALUE);
  memory_free(&allocation);
  return driver_leave(CUDA_SUCCESS);
}

STREAM_API(cuMemFreeAsync, cuMemFreeAsync_ptsz, (CUdeviceptr address, CUstream stream), address, stream)

static CUresult enter_device(CUdevice ordinal, const void *argument, unsigned *device) {
  FORWARD_IF_ERROR(driver_enter());
  if (!argument)
    return driver_leave(CUDA_ERROR_INVALID_VALUE);
  return visible_device(ordinal, device) ? CUDA_SUCCESS : driver_leave(CUDA_ERROR_INVALID_DEVICE);
}

static CUresult leave_with_pool(const struct pool *pool, CUmemoryPool *handle) {
  if (pool)
    *handle = pool->handle;
  return driver_leave(pool ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY);
}

CUresult CUDAAPI cuDeviceGetDefaultMemPool(CUmemoryPool *handle, CUdevice ordinal) {
  unsigned device;
  FORWARD_IF_ERROR(enter_device(ordinal, handle, &device));
  return leave_with_pool(pool_default(device), handle);
}

CUresult CUDAAPI cuDeviceGetMemPool(CUmemoryPool *handle, CUdevice ordinal) {
  unsigned device;
  FORWARD_IF_ERROR(enter_device(ordinal, handle, &device));
  return leave_with_pool(current_pool(device), handle);
}

CUresult CUDAAPI cuDeviceSetMemPool(CUdevice ordinal, CUmemoryPool handle) {
  unsigned device;
  FORWARD_IF_ERROR(enter_device(ordinal, handle, &device));
  const struct pool *pool = find_pool(handle);
  if (!pool || pool->device != device)
    return driver_leave(CUDA_ERROR_INVALID_VALUE);
  current_pools[device] = handle;
  return driver_leave(CUDA_SUCCESS);
}

CUresult CUDAAPI cuMemPoolCreate(CUmemoryPool *handle, const CUmemPoolProps *properties) {
  unsigned device;
  FORWARD_IF_ERROR(driver_enter());
  if (!handle || !properties || properties->allocType != CU_MEM_ALLOCATION_TYPE_PINNED)
    return driver_leave(CUDA_ERROR_INVALID_VALUE);
  if (properties->location.type != CU_MEM_LOCATION_TYPE_DEVICE || properties->handleTypes != CU_MEM_HANDLE_TYPE_NONE)
    return driver_leave(CUDA_ERROR_NOT_SUPPORTED);
  if (!visible_device(properties->location.id, &device))
    return driver_leave(CUDA_ERROR_INVALID_DEVICE);
  struct pool *pool = pool_new(device);
  if (!pool)
    return driver_leave(CUDA_ERROR_OUT_OF_MEMORY);
  pool->maximum_bytes = properties->maxSize;
  *handle = pool->handle;
  return driver_leave(CUDA_SUCCESS);
}

static CUresult enter_pool(CUmemoryPool handle, struct pool **pool) {
  FORWARD_IF_ERROR(driver_enter());
  *pool = find_pool(handle);
  return *pool ? CUDA_SUCCESS : driver_leave(CUDA_ERROR_INVALID_VALUE);
}

CUresult CUDAAPI cuMemPoolDestroy(CUmemoryPool handle) {
  struct pool *pool;
  FORWARD_IF_ERROR(enter_pool(handle, &pool));
  if (pool->is_default)
    return driver_leave(CUDA_ERROR_INVALID_VALUE);
  pool_destroy(pool);
  return driver_leave(CUDA_SUCCESS);
}

CUresult CUDAAPI cuMemPoolTrimTo(CUmemoryPool handle, size_t keep_bytes) {
  struct pool *pool;
  FORWARD_IF_ERROR(enter_pool(handle, &pool));
  pool_trim(pool, keep_bytes);
  return driver_leave(CUDA_SUCCESS);
}

static CUresult get_attribute(const struct pool *pool, CUmemPool_attribute attribute, void *value) {
  uint64_t *bytes = value;
  switch (attribute) {
  case CU_MEMPOOL_ATTR_REUSE_FOLLOW_EVENT_DEPENDENCIES:
  case CU_MEMPOOL_ATTR_REUSE_ALLOW_OPPORTUNISTIC:
  case CU_MEMPOOL_ATTR_REUSE_ALLOW_INTERNAL_DEPENDENCIES:
    *(int *)value = pool->reuse[attribute - CU_MEMPOOL_ATTR_REUSE_FOLLOW_EVENT_DEPENDENCIES];
    return CUDA_SUCCESS;
  case CU_MEMPOOL_ATTR_RELEASE_THRESHOLD:
    *bytes = pool->release_threshold_bytes;
    return CUDA_SUCCESS;
  case CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT:
    *bytes = pool->reserved_bytes;
    return CUDA_SUCCESS;
  case CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH:
    *bytes = pool->reserved_high_bytes;
    return CUDA_SUCCESS;
  case CU_MEMPOOL_ATTR_USED_MEM_CURRENT:
    *bytes = pool->used_bytes;
    return CUDA_SUCCESS;
  case CU_MEMPOOL_ATTR_USED_MEM_HIGH:
    *bytes = pool->used_high_bytes;
    return CUDA_SUCCESS;
  default:
    return CUDA_ERROR_INVALID_VALUE;
  }
}

CUresult CUDAAPI cuMemPoolGetAttribute(CUmemoryPool handle, CUmemPool_attribute attribute, void *value) {
  struct pool *pool;
  FORWARD_IF_ERROR(enter_pool(handle, &pool));
  return driver_leave(value ? get_attribute(pool, attribute, value) : CUDA_ERROR_INVALID_VALUE);
}

/* A high-water mark can only be reset, by setting it to 0. */
static CUresult reset_high(uint64_t *high, uint64_t current, const void *value) {
  if (*(const uint64_t *)value != 0)
    return CUDA_ERROR_INVALID_VALUE;
  *high = current;
  return CUDA_SUCCESS;
}

CUresult CUDAAPI cuMemPoolSetAttribute(CUmemoryPool handle, CUmemPool_attribute attribute, void *value) {
  struct pool *pool;
  FORWARD_IF_ERROR(enter_pool(handle, &pool));
  if (!value)
    return driver_leave(CUDA_ERROR_INVALID_VALUE);
  switch (attribute) {
  case CU_MEMPOOL_ATTR_REUSE_FOLLOW_EVENT_DEPENDENCIES:
  case CU_MEMPOOL_ATTR_REUSE_ALLOW_OPPORTUNISTIC:
  case CU_MEMPOOL_ATTR_REUSE_ALLOW_INTERNAL_DEPENDENCIES:
    pool->reuse[attribute - CU_MEMPOOL_ATTR_REUSE_FOLLOW_EVENT_DEPENDENCIES] = *(int *)value != 0;
    return driver_leave(CUDA_SUCCESS);
  case CU_MEMPOOL_ATTR_RELEASE_THRESHOLD:
    pool->release_threshold_bytes = *(uint64_t *)value;
    return driver_leave(CUDA_SUCCESS);
  case CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH:
    return driver_leave(reset_high(&pool->reserved_high_bytes, pool->reserved_bytes, value));
  case CU_MEMPOOL_ATTR_USED_MEM_HIGH:
    return driver_leave(reset_high(&pool->used_high_bytes, pool->used_bytes, value));
  default:
    return driver_leave(CUDA_ERROR_INVALID_VALUE);
  }
}
