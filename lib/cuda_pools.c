/*
 * Stream-ordered allocations come from pools, and what a pool takes from the device is its reserve: it grows before a
 * request that does not fit, and stays behind when memory is freed. So the reserve is what is counted, not the
 * requests.
 */
#include "capture.h"
#include "clock.h"
#include "cuda_graph_memory.h"
#include "cuda_launch.h"
#include "cuda_memory.h"
#include "process.h"

#include <pthread.h>

#define MAX_POOLS 256
/* Measured on driver 580: a pool grows by whole 32 MiB, and by no more than it must. */
#define GROWTH_STEP (32ULL << 20)

#define LONGEST_QUESTION_NS 100000000LL

struct pool {
  CUmemoryPool handle;     /* NULL: a free place */
  struct device *device;   /* NULL: of host memory, which is not counted */
  uint64_t reserved_bytes; /* as last read, and counted in the ledger */
  int users;               /* threads that ask the driver about it on their own account */
  bool leaving;            /* being destroyed: its handle may soon be another pool's */
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER; /* guards the pools; never held across a driver call */
static struct pool pools[MAX_POOLS];

static struct pool *find(CUmemoryPool handle) {
  for (int i = 0; i < MAX_POOLS; i++)
    if (pools[i].handle == handle && !pools[i].leaving)
      return &pools[i];
  return NULL;
}

static struct pool *find_or_add(CUmemoryPool handle, struct device *device) {
  struct pool *pool = find(handle);
  if (pool == NULL && (pool = find(NULL)) != NULL)
    *pool = (struct pool){.handle = handle, .device = device, .users = pool->users};
  return pool;
}

static uint64_t growth_for(uint64_t size, uint64_t idle) {
  if (size <= idle)
    return 0;
  uint64_t missing = size - idle;
  return missing > UINT64_MAX - GROWTH_STEP ? missing : (missing + GROWTH_STEP - 1) / GROWTH_STEP * GROWTH_STEP;
}

/* The device that the pool's memory is on, or NULL. A pool that we have not seen made is the current device's. */
static struct device *device_of_pool(CUmemoryPool handle, struct device *current) {
  pthread_mutex_lock(&lock);
  const struct pool *pool = find_or_add(handle, current);
  struct device *device = pool != NULL ? pool->device : current;
  pthread_mutex_unlock(&lock);
  return device;
}

static bool ask(CUmemoryPool handle, CUmemPool_attribute attribute, cuuint64_t *bytes) {
  return real.cuMemPoolGetAttribute(handle, attribute, bytes) == CUDA_SUCCESS;
}

/* What of the pool's reserve is not in use. */
static uint64_t idle_bytes(CUmemoryPool handle) {
  cuuint64_t reserved_bytes, used_bytes;
  bool known = ask(handle, CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT, &reserved_bytes) &&
               ask(handle, CU_MEMPOOL_ATTR_USED_MEM_CURRENT, &used_bytes);
  return known && reserved_bytes > used_bytes ? reserved_bytes - used_bytes : 0;
}

/* Counts the pool's reserve as it is now. */
static void reread(CUmemoryPool handle) {
  cuuint64_t reserved_bytes;
  if (!ask(handle, CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT, &reserved_bytes))
    return;
  pthread_mutex_lock(&lock);
  struct pool *pool = find(handle);
  if (pool != NULL) {
    if (reserved_bytes > pool->reserved_bytes)
      memory_add(pool->device, reserved_bytes - pool->reserved_bytes);
    else
      memory_release(pool->device, pool->reserved_bytes - reserved_bytes);
    pool->reserved_bytes = reserved_bytes;
  }
  pthread_mutex_unlock(&lock);
}

/* The next pool of the device from *place on; it is not destroyed until let_go. */
static struct pool *take_hold(const struct device *device, int *place) {
  struct pool *pool = NULL;
  pthread_mutex_lock(&lock);
  for (; *place < MAX_POOLS && pool == NULL; ++*place)
    if (pools[*place].handle != NULL && pools[*place].device == device && !pools[*place].leaving)
      pool = &pools[*place];
  if (pool != NULL)
    pool->users++;
  pthread_mutex_unlock(&lock);
  return pool;
}

static void let_go(struct pool *pool) {
  pthread_mutex_lock(&lock);
  pool->users--;
  pthread_mutex_unlock(&lock);
}

void pools_settle(struct device *device, enum pools what) {
  int place = 0;
  struct pool *pool;
  while ((pool = take_hold(device, &place)) != NULL) {
    if (what == POOLS_TRIM)
      real.cuMemPoolTrimTo(pool->handle, 0);
    reread(pool->handle);
    let_go(pool);
  }
  graph_memory_settle(device, what);
}

static CUmemoryPool current_pool(void) {
  CUdevice ordinal;
  CUmemoryPool pool = NULL;
  if (real.cuCtxGetDevice(&ordinal) != CUDA_SUCCESS || real.cuDeviceGetMemPool(&pool, ordinal) != CUDA_SUCCESS)
    return NULL;
  return pool;
}

struct request {
  struct device *device; /* NULL: nothing is counted */
  CUmemoryPool pool;
  uint64_t reserved; /* for the growth of the pool */
  bool may_pass_limit;
  CUdeviceptr pointer;
};

/* Near the limit it is not known whether what is idle in the pool can serve the request: it may be in pieces, or in use
 * by work that has not ended. Then the driver may try, and its answer is looked at. */
static CUresult reserve_growth(struct request *request, uint64_t size, CUstream stream) {
  request->device = device_of_pool(request->pool, request->device);
  if (request->device == NULL)
    return CUDA_SUCCESS;
  request->reserved = growth_for(size, 0);
  if (memory_try_reserve(request->device, request->reserved))
    return CUDA_SUCCESS;
  if (capture_is_active(stream)) { /* a node of a graph, which takes memory when it is launched */
    request->device = NULL;
    return CUDA_SUCCESS;
  }
  request->may_pass_limit = true;
  request->reserved = growth_for(size, idle_bytes(request->pool));
  return request->reserved == 0 ? CUDA_SUCCESS : memory_reserve(request->device, request->reserved);
}

static CUresult begin(struct request *request, CUmemoryPool pool, size_t size, CUstream stream,
                      const CUdeviceptr *pointer) {
  *request = (struct request){.pool = pool};
  if (pointer == NULL)
    return CUDA_ERROR_INVALID_VALUE;
  if (!process_is_limited())
    return CUDA_SUCCESS;
  CUstreamCaptureMode mode = capture_relax();
  if (request->pool == NULL)
    request->pool = current_pool();
  CUresult result = CUDA_SUCCESS;
  if (request->pool != NULL && (request->device = device_of_current_context()) != NULL)
    result = reserve_growth(request, size, stream);
  capture_restore(mode);
  return result;
}

static CUresult end(struct request *request, CUresult result, CUstream stream, size_t size, CUdeviceptr *pointer) {
  if (request->device != NULL) {
    CUstreamCaptureMode mode = capture_relax();
    reread(request->pool); /* counts the growth that was, before the expected one is taken back */
    memory_cancel(request->device, request->reserved);
    if (result == CUDA_SUCCESS && request->may_pass_limit && memory_is_over(request->device)) {
      real.cuMemFreeAsync(request->pointer, stream);
      pools_settle(request->device, POOLS_TRIM);
      result = memory_refuse(request->device, size);
    }
    capture_restore(mode);
  }
  if (result == CUDA_SUCCESS)
    *pointer = request->pointer;
  return result;
}

HOOK CUresult cuMemAllocAsync(CUdeviceptr *pointer, size_t size, CUstream stream) {
  struct request request;
  CUresult result = begin(&request, NULL, size, legacy(stream), pointer);
  if (result == CUDA_SUCCESS)
    result = end(&request, real.cuMemAllocAsync(&request.pointer, size, stream), legacy(stream), size, pointer);
  return result;
}

HOOK CUresult cuMemAllocAsync_ptsz(CUdeviceptr *pointer, size_t size, CUstream stream) {
  struct request request;
  CUresult result = begin(&request, NULL, size, per_thread(stream), pointer);
  if (result == CUDA_SUCCESS)
    result =
        end(&request, real.cuMemAllocAsync_ptsz(&request.pointer, size, stream), per_thread(stream), size, pointer);
  return result;
}

HOOK CUresult cuMemAllocFromPoolAsync(CUdeviceptr *pointer, size_t size, CUmemoryPool pool, CUstream stream) {
  struct request request;
  CUresult result = begin(&request, pool, size, legacy(stream), pointer);
  if (result == CUDA_SUCCESS)
    result = end(&request, real.cuMemAllocFromPoolAsync(&request.pointer, size, pool, stream), legacy(stream), size,
                 pointer);
  return result;
}

HOOK CUresult cuMemAllocFromPoolAsync_ptsz(CUdeviceptr *pointer, size_t size, CUmemoryPool pool, CUstream stream) {
  struct request request;
  CUresult result = begin(&request, pool, size, per_thread(stream), pointer);
  if (result == CUDA_SUCCESS)
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
  pthread_mutex_lock(&lock);
  find_or_add(*pool, device);
  pthread_mutex_unlock(&lock);
  return result;
}

HOOK CUresult cuMemPoolTrimTo(CUmemoryPool pool, size_t keep_bytes) {
  bool limited = process_is_limited();
  CUresult result = real.cuMemPoolTrimTo(pool, keep_bytes);
  if (result == CUDA_SUCCESS && limited)
    reread(pool);
  return result;
}

/* Waits for other threads' questions about the pool, but not for ever. */
static struct pool *begin_destroy(CUmemoryPool handle) {
  int64_t give_up_ns = clock_now_ns() + LONGEST_QUESTION_NS;
  pthread_mutex_lock(&lock);
  struct pool *pool = handle != NULL ? find(handle) : NULL;
  if (pool != NULL)
    pool->leaving = true;
  while (pool != NULL && pool->users > 0 && clock_now_ns() < give_up_ns) {
    pthread_mutex_unlock(&lock);
    clock_sleep_ns(20000);
    pthread_mutex_lock(&lock);
  }
  pthread_mutex_unlock(&lock);
  return pool;
}

static void end_destroy(struct pool *pool, bool destroyed) {
  pthread_mutex_lock(&lock);
  pool->leaving = false;
  if (destroyed) {
    memory_release(pool->device, pool->reserved_bytes);
    *pool = (struct pool){.users = pool->users};
  }
  pthread_mutex_unlock(&lock);
}

HOOK CUresult cuMemPoolDestroy(CUmemoryPool handle) {
  struct pool *pool = process_is_limited() ? begin_destroy(handle) : NULL;
  CUresult result = real.cuMemPoolDestroy(handle);
  if (pool != NULL)
    end_destroy(pool, result == CUDA_SUCCESS);
  return result;
}

void pools_forget(void) {
  pthread_mutex_init(&lock, NULL);
  for (int i = 0; i < MAX_POOLS; i++)
    pools[i] = (struct pool){0};
}
