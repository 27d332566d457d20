/* Stream-ordered allocations: what their pool may grow by is reserved, and then its growth counted. */
#include "cuda/memory.h"
#include "cuda/memory_pools.h"
#include "device/devices.h"
#include "device/process.h"
#include "stream/streams.h"

/* Measured on driver 580: a pool grows by whole 32 MiB, and by no more than it must. */
#define GROWTH_STEP (32ULL << 20)

struct request {
  struct device *device; /* NULL: nothing is counted */
  CUdevice ordinal;
  CUmemoryPool handle; /* NULL: the device's current one, not asked for yet */
  struct pool *pool;   /* NULL: not known yet */
  uint64_t reserved;   /* for the growth of the pool */
  bool may_pass_limit;
  bool is_served; /* by the host */
  CUdeviceptr pointer;
};

static uint64_t growth_for(uint64_t size, uint64_t idle) {
  if (size <= idle)
    return 0;
  uint64_t missing = size - idle;
  return missing > UINT64_MAX - GROWTH_STEP ? missing : (missing + GROWTH_STEP - 1) / GROWTH_STEP * GROWTH_STEP;
}

/* Which pool it is need not be known where it does not grow: to ask takes a call of the driver. */
static bool know_pool(struct request *request) {
  bool known = request->handle != NULL || real.cuDeviceGetMemPool(&request->handle, request->ordinal) == CUDA_SUCCESS;
  if (known && request->pool == NULL)
    request->pool = pools_know(request->handle, request->device);
  return known && request->pool != NULL;
}

/* Near the limit it is not known whether what is idle in the pool can serve the request: it may be in pieces, or in use
 * by work that has not ended. Then the driver may try, and its answer is looked at. */
static bool reserve_growth(struct request *request, uint64_t size, CUstream stream) {
  request->reserved = growth_for(size, 0);
  if (memory_try_reserve_data(request->device, request->reserved))
    return true;
  if (capture_is_active(stream)) { /* a node of a graph, which takes memory when it is launched */
    request->device = NULL;
    return true;
  }
  request->may_pass_limit = true;
  CUstreamCaptureMode mode = capture_relax();
  pools_settle(request->device, POOLS_TRIM); /* before it is asked what is idle: what goes back has to come again */
  request->reserved = growth_for(size, know_pool(request) ? pools_idle_bytes(request->handle) : 0);
  bool fits = request->reserved == 0 || memory_make_room_for_data(request->device, request->reserved);
  capture_restore(mode);
  return fits;
}

/* Serves a request from host memory where the pool may not grow. That memory is in no pool, but is freed alike. */
static CUresult serve(struct request *request, size_t size) {
  struct current current = device_current();
  CUstreamCaptureMode mode = capture_relax();
  CUresult result = request->device == current.device
                        ? memory_allocate_on_host(&current, &request->pointer, size, CU_MEM_ATTACH_GLOBAL)
                        : memory_refuse(request->device, size);
  capture_restore(mode);
  request->is_served = result == CUDA_SUCCESS;
  return result;
}

static HOT CUresult begin(struct request *request, CUmemoryPool handle, size_t size, CUstream stream,
                          CUdeviceptr *pointer) {
  *request = (struct request){.handle = handle};
  if (pointer == NULL)
    return CUDA_ERROR_INVALID_VALUE;
  if (!process_is_limited())
    return CUDA_SUCCESS;
  struct current current = device_current();
  request->device = current.device;
  request->ordinal = current.ordinal;
  if (handle != NULL && current.device != NULL && know_pool(request))
    request->device = request->pool->device;
  if (request->device == NULL || reserve_growth(request, size, stream))
    return CUDA_SUCCESS;
  CUresult result = serve(request, size);
  if (result == CUDA_SUCCESS)
    *pointer = request->pointer;
  return result;
}

/* The driver has had to grow the pool although that may pass the limit. */
static CUresult undo(struct request *request, CUstream stream, size_t size) {
  CUstreamCaptureMode mode = capture_relax();
  real.cuMemFreeAsync(request->pointer, stream);
  pools_settle(request->device, POOLS_TRIM);
  capture_restore(mode);
  return serve(request, size);
}

static void count_growth(struct request *request, uint64_t size) {
  if ((!request->may_pass_limit && pools_is_counted(request->pointer, size)) || !know_pool(request))
    return;
  pools_reread(request->pool, request->handle);
  pools_note_counted(request->pointer, size);
}

static HOT CUresult end(struct request *request, CUresult result, CUstream stream, size_t size, CUdeviceptr *pointer) {
  if (request->device != NULL) {
    if (result == CUDA_SUCCESS)
      count_growth(request, size); /* before the expected one is taken back */
    memory_cancel(request->device, request->reserved);
    if (result == CUDA_SUCCESS && request->may_pass_limit && memory_is_over(request->device))
      result = undo(request, stream, size);
    else if (result == CUDA_ERROR_OUT_OF_MEMORY && memory_may_be_served(request->device) && !capture_is_active(stream))
      result = serve(request, size);
  }
  if (result == CUDA_SUCCESS)
    *pointer = request->pointer;
  return result;
}

HOOK CUresult cuMemAllocAsync(CUdeviceptr *pointer, size_t size, CUstream stream) {
  struct request request;
  CUresult result = begin(&request, NULL, size, legacy(stream), pointer);
  if (result == CUDA_SUCCESS && !request.is_served)
    result = end(&request, real.cuMemAllocAsync(&request.pointer, size, stream), legacy(stream), size, pointer);
  return result;
}

HOOK CUresult cuMemAllocAsync_ptsz(CUdeviceptr *pointer, size_t size, CUstream stream) {
  struct request request;
  CUresult result = begin(&request, NULL, size, per_thread(stream), pointer);
  if (result == CUDA_SUCCESS && !request.is_served)
    result =
        end(&request, real.cuMemAllocAsync_ptsz(&request.pointer, size, stream), per_thread(stream), size, pointer);
  return result;
}

HOOK CUresult cuMemAllocFromPoolAsync(CUdeviceptr *pointer, size_t size, CUmemoryPool pool, CUstream stream) {
  struct request request;
  CUresult result = begin(&request, pool, size, legacy(stream), pointer);
  if (result == CUDA_SUCCESS && !request.is_served)
    result = end(&request, real.cuMemAllocFromPoolAsync(&request.pointer, size, pool, stream), legacy(stream), size,
                 pointer);
  return result;
}

HOOK CUresult cuMemAllocFromPoolAsync_ptsz(CUdeviceptr *pointer, size_t size, CUmemoryPool pool, CUstream stream) {
  struct request request;
  CUresult result = begin(&request, pool, size, per_thread(stream), pointer);
  if (result == CUDA_SUCCESS && !request.is_served)
    result = end(&request, real.cuMemAllocFromPoolAsync_ptsz(&request.pointer, size, pool, stream), per_thread(stream),
                 size, pointer);
  return result;
}

HOOK CUresult cuMemPoolCreate(CUmemoryPool *pool, const CUmemPoolProps *properties) {
  bool limited = process_is_limited();
  CUresult result = real.cuMemPoolCreate(pool, properties);
  if (result != CUDA_SUCCESS || !limited)
    return result;
  bool on_device = properties->location.type == CU_MEM_LOCATION_TYPE_DEVICE;
  struct device *device = on_device ? device_of_ordinal(properties->location.id) : NULL;
  pools_add(*pool, device);
  return result;
}

HOOK CUresult cuMemPoolTrimTo(CUmemoryPool pool, size_t keep_bytes) {
  bool limited = process_is_limited();
  CUresult result = real.cuMemPoolTrimTo(pool, keep_bytes);
  struct pool *found = result == CUDA_SUCCESS && limited ? pools_find(pool) : NULL;
  if (found != NULL)
    pools_reread(found, pool);
  return result;
}

HOOK CUresult cuMemPoolDestroy(CUmemoryPool handle) {
  struct pool *pool = process_is_limited() ? pools_begin_destroy(handle) : NULL;
  if (pool == NULL)
    return real.cuMemPoolDestroy(handle);
  const struct device *device = pool->device;
  memory_begin_leaving(device, LEDGER_UNKNOWN_BYTES);
  CUresult result = real.cuMemPoolDestroy(handle);
  pools_end_destroy(pool, result == CUDA_SUCCESS);
  memory_end_leaving(device, LEDGER_UNKNOWN_BYTES);
  return result;
}
