/*
 * Stream-ordered allocations come from pools, and what a pool takes from the device is its reserve: it grows before a
 * request that does not fit, and stays behind when memory is freed. So the reserve is what is counted, not the
 * requests.
 */
#include "capture.h"
#include "clock.h"
#include "cuda_graph_memory.h"
#include "cuda_host_memory.h"
#include "cuda_launch.h"
#include "cuda_memory.h"
#include "process.h"

#include <pthread.h>
#include <string.h>

#define MAX_POOLS 256
/* Measured on driver 580: a pool grows by whole 32 MiB, and by no more than it must. */
#define GROWTH_STEP (32ULL << 20)

#define LONGEST_QUESTION_NS 100000000LL
#define KNOWN_PAGES 32

struct pool {
  CUmemoryPool handle;     /* NULL: a free place */
  struct device *device;   /* NULL: of host memory, which is not counted */
  uint64_t reserved_bytes; /* as last read, and counted in the ledger */
  uint64_t readings;
  int users;    /* threads that ask the driver about it on their own account */
  bool leaving; /* being destroyed: its handle may soon be another pool's */
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER; /* guards the pools; never held across a driver call */
static struct pool pools[MAX_POOLS];
static int places; /* in use, or used before */

/* What a thread knows of pools, good until one is destroyed, or may have given memory back: what it allocated from
 * last, and pages whose memory is in the reserve that is counted. An allocation in such pages has not made its pool
 * grow, and the driver need not be asked. */
static uint64_t times_shrunk;
static __thread struct {
  uint64_t times_shrunk;
  struct pool *pool;
  uint64_t pages[KNOWN_PAGES];
} known;

static struct pool *find(CUmemoryPool handle) {
  for (int i = 0; i < places; i++)
    if (pools[i].handle == handle && !pools[i].leaving)
      return &pools[i];
  return NULL;
}

static struct pool *free_place(void) {
  struct pool *pool = find(NULL);
  if (pool == NULL && places < MAX_POOLS)
    pool = &pools[places++];
  return pool;
}

static struct pool *find_safely(CUmemoryPool handle) {
  pthread_mutex_lock(&lock);
  struct pool *pool = handle != NULL ? find(handle) : NULL;
  pthread_mutex_unlock(&lock);
  return pool;
}

static struct pool *find_or_add(CUmemoryPool handle, struct device *device) {
  struct pool *pool = find(handle);
  if (pool == NULL && (pool = free_place()) != NULL)
    *pool = (struct pool){.handle = handle, .device = device, .readings = pool->readings + 1, .users = pool->users};
  return pool;
}

static uint64_t growth_for(uint64_t size, uint64_t idle) {
  if (size <= idle)
    return 0;
  uint64_t missing = size - idle;
  return missing > UINT64_MAX - GROWTH_STEP ? missing : (missing + GROWTH_STEP - 1) / GROWTH_STEP * GROWTH_STEP;
}

static void note_shrinking(void) {
  __atomic_add_fetch(&times_shrunk, 1, __ATOMIC_SEQ_CST);
}

/* True when nothing had to be forgotten. */
static bool refresh_known(void) {
  uint64_t now = __atomic_load_n(&times_shrunk, __ATOMIC_SEQ_CST);
  if (known.times_shrunk == now)
    return true;
  memset(&known, 0, sizeof known);
  known.times_shrunk = now;
  return false;
}

static uint64_t *known_page(uint64_t address) {
  return &known.pages[address / LEDGER_BLOCK_BYTES % KNOWN_PAGES];
}

/* Of requests that lie in two pages at the most. */
static bool is_counted(uint64_t address, uint64_t size) {
  uint64_t end = address + size - 1;
  return size <= LEDGER_BLOCK_BYTES && refresh_known() && *known_page(address) == address / LEDGER_BLOCK_BYTES &&
         *known_page(end) == end / LEDGER_BLOCK_BYTES;
}

static void note_counted(uint64_t address, uint64_t size) {
  for (int i = 0; i < 2 && size > 0 && size <= LEDGER_BLOCK_BYTES; i++, address += size - 1)
    *known_page(address) = address / LEDGER_BLOCK_BYTES;
}

/* A pool that we have not seen made is the current device's. NULL when there are too many. */
static struct pool *pool_of(CUmemoryPool handle, struct device *current) {
  if (refresh_known() && known.pool != NULL && known.pool->handle == handle)
    return known.pool;
  pthread_mutex_lock(&lock);
  known.pool = find_or_add(handle, current);
  pthread_mutex_unlock(&lock);
  return known.pool;
}

static bool ask(CUmemoryPool handle, CUmemPool_attribute attribute, cuuint64_t *bytes) {
  CUstreamCaptureMode mode = capture_relax();
  CUresult result = real.cuMemPoolGetAttribute(handle, attribute, bytes);
  capture_restore(mode);
  return result == CUDA_SUCCESS;
}

/* What of the pool's reserve is not in use. */
static uint64_t idle_bytes(CUmemoryPool handle) {
  cuuint64_t reserved_bytes, used_bytes;
  bool answered = ask(handle, CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT, &reserved_bytes) &&
                  ask(handle, CU_MEMPOOL_ATTR_USED_MEM_CURRENT, &used_bytes);
  return answered && reserved_bytes > used_bytes ? reserved_bytes - used_bytes : 0;
}

/* False when the pool has less than is counted: that is taken back only where `shrinking` was made known before the
 * driver was asked, so that who has allocated since has asked too, and only if nobody has. */
static bool count_reserve(struct pool *pool, CUmemoryPool handle, uint64_t reserved_bytes, bool shrinking,
                          uint64_t readings) {
  pthread_mutex_lock(&lock);
  uint64_t counted_bytes = pool->handle == handle ? pool->reserved_bytes : reserved_bytes;
  bool counts = reserved_bytes >= counted_bytes || (shrinking && pool->readings == readings);
  if (reserved_bytes > counted_bytes)
    memory_add(pool->device, reserved_bytes - counted_bytes);
  else if (counts)
    memory_release(pool->device, counted_bytes - reserved_bytes);
  if (counts && pool->handle == handle)
    pool->reserved_bytes = reserved_bytes;
  __atomic_store_n(&pool->readings, pool->readings + 1, __ATOMIC_SEQ_CST);
  pthread_mutex_unlock(&lock);
  return counts;
}

/* Counts the pool's reserve as it is now: too much for a moment perhaps, but never too little. */
static void reread(struct pool *pool, CUmemoryPool handle) {
  cuuint64_t reserved_bytes;
  if (!ask(handle, CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT, &reserved_bytes) ||
      count_reserve(pool, handle, reserved_bytes, false, 0))
    return;
  note_shrinking();
  uint64_t readings = __atomic_load_n(&pool->readings, __ATOMIC_SEQ_CST);
  if (ask(handle, CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT, &reserved_bytes))
    count_reserve(pool, handle, reserved_bytes, true, readings);
}

/* The next pool of the device from *place on; it is not destroyed until let_go. */
static struct pool *take_hold(const struct device *device, int *place) {
  struct pool *pool = NULL;
  pthread_mutex_lock(&lock);
  for (; *place < places && pool == NULL; ++*place)
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

static void settle(const struct device *device, enum pools what) {
  int place = 0;
  struct pool *pool;
  while ((pool = take_hold(device, &place)) != NULL) {
    if (what == POOLS_TRIM)
      real.cuMemPoolTrimTo(pool->handle, 0);
    reread(pool, pool->handle);
    let_go(pool);
  }
}

void pools_settle(struct device *device, enum pools what) {
  settle(device, what);
  graph_memory_settle(device, what);
}

/* Where the program waits, the driver takes back what pools do not need. */
void pools_after_wait(void) {
  const struct device *device;
  host_memory_collect();
  for (int i = 0; (device = devices_at(i)) != NULL; i++)
    settle(device, POOLS_REREAD);
}

struct request {
  struct device *device; /* NULL: nothing is counted */
  struct pool *pool;
  CUmemoryPool handle;
  uint64_t reserved; /* for the growth of the pool */
  bool may_pass_limit;
  bool is_served; /* by the host */
  CUdeviceptr pointer;
};

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
  request->reserved = growth_for(size, idle_bytes(request->handle));
  bool fits = request->reserved == 0 || memory_make_room_for_data(request->device, request->reserved);
  capture_restore(mode);
  return fits;
}

/* Where the pool may not grow. What the host serves is in no pool, but is freed like what is. */
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

static CUresult begin(struct request *request, CUmemoryPool handle, size_t size, CUstream stream,
                      CUdeviceptr *pointer) {
  *request = (struct request){.handle = handle};
  if (pointer == NULL)
    return CUDA_ERROR_INVALID_VALUE;
  if (!process_is_limited())
    return CUDA_SUCCESS;
  struct current current = device_current();
  if (current.device == NULL ||
      (handle == NULL && real.cuDeviceGetMemPool(&request->handle, current.ordinal) != CUDA_SUCCESS))
    return CUDA_SUCCESS;
  request->pool = pool_of(request->handle, current.device);
  request->device = request->pool != NULL ? request->pool->device : current.device;
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

static void count_growth(const struct request *request, uint64_t size) {
  if (!request->may_pass_limit && is_counted(request->pointer, size))
    return;
  reread(request->pool, request->handle);
  note_counted(request->pointer, size);
}

static CUresult end(struct request *request, CUresult result, CUstream stream, size_t size, CUdeviceptr *pointer) {
  if (request->device != NULL) {
    if (request->pool != NULL && result == CUDA_SUCCESS)
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
  pthread_mutex_lock(&lock);
  find_or_add(*pool, device);
  pthread_mutex_unlock(&lock);
  return result;
}

HOOK CUresult cuMemPoolTrimTo(CUmemoryPool pool, size_t keep_bytes) {
  bool limited = process_is_limited();
  CUresult result = real.cuMemPoolTrimTo(pool, keep_bytes);
  struct pool *found = result == CUDA_SUCCESS && limited ? find_safely(pool) : NULL;
  if (found != NULL)
    reread(found, pool);
  return result;
}

/* Waits for other threads' questions about the pool, but not for ever. */
static struct pool *begin_destroy(CUmemoryPool handle) {
  int64_t give_up_ns = clock_now_ns() + LONGEST_QUESTION_NS;
  note_shrinking();
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
    *pool = (struct pool){.readings = pool->readings + 1, .users = pool->users};
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
  memset(pools, 0, sizeof pools);
  places = 0;
  note_shrinking();
}
