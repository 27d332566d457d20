/* The pools that there are, what is counted for each, and what a thread knows of them. */
#include "cuda/memory_pools.h"
#include "base/compiler.h"
#include "cuda/graph_memory.h"
#include "cuda/host_memory.h"
#include "device/devices.h"
#include "device/process.h"

#include "base/clock.h"
#include "cuda/memory.h"
#include "memory/ledger.h"

#include <pthread.h>
#include <string.h>

#define MAX_POOLS 256
#define LONGEST_QUESTION_NS 100000000LL
#define KNOWN_PAGES 32

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER; /* guards the pools; never held across a driver call */
static struct pool pools[MAX_POOLS];
static int places; /* in use, or used before */

/* A thread's knowledge of pools, good until one is destroyed, or may have given memory back: what it allocated from
 * last, and pages whose memory is in the reserve that is counted. An allocation in such pages has not made its pool
 * grow, and the driver need not be asked. */
static HOT_DATA uint64_t times_shrunk;
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

struct pool *pools_find(CUmemoryPool handle) {
  pthread_mutex_lock(&lock);
  struct pool *pool = handle != NULL ? find(handle) : NULL;
  pthread_mutex_unlock(&lock);
  return pool;
}

/* Who holds a pool for longer than its end waits may still read it: so a place is never written as a whole. */
static void put(struct pool *pool, CUmemoryPool handle, struct device *device) {
  pool->device = device;
  pool->reserved_bytes = 0;
  __atomic_store_n(&pool->readings, pool->readings + 1, __ATOMIC_SEQ_CST);
  __atomic_store_n(&pool->handle, handle, __ATOMIC_RELAXED);
}

static struct pool *find_or_add(CUmemoryPool handle, struct device *device) {
  struct pool *pool = find(handle);
  if (pool == NULL && (pool = free_place()) != NULL)
    put(pool, handle, device);
  return pool;
}

void pools_add(CUmemoryPool handle, struct device *device) {
  pthread_mutex_lock(&lock);
  find_or_add(handle, device);
  pthread_mutex_unlock(&lock);
}

void pools_note_shrinking(void) {
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

HOT bool pools_is_counted(uint64_t address, uint64_t size) {
  uint64_t end = address + size - 1;
  return size <= LEDGER_BLOCK_BYTES && refresh_known() && *known_page(address) == address / LEDGER_BLOCK_BYTES &&
         *known_page(end) == end / LEDGER_BLOCK_BYTES;
}

void pools_note_counted(uint64_t address, uint64_t size) {
  for (int i = 0; i < 2 && size > 0 && size <= LEDGER_BLOCK_BYTES; i++, address += size - 1)
    *known_page(address) = address / LEDGER_BLOCK_BYTES;
}

struct pool *pools_know(CUmemoryPool handle, struct device *current) {
  if (refresh_known() && known.pool != NULL && known.pool->handle == handle)
    return known.pool;
  pthread_mutex_lock(&lock);
  known.pool = find_or_add(handle, current);
  pthread_mutex_unlock(&lock);
  return known.pool;
}

bool pools_count_reserve(struct pool *pool, CUmemoryPool handle, uint64_t reserved_bytes, bool shrinking,
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

struct pool *pools_take_hold(const struct device *device, int *place) {
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

void pools_let_go(struct pool *pool) {
  pthread_mutex_lock(&lock);
  pool->users--;
  pthread_mutex_unlock(&lock);
}

struct pool *pools_begin_destroy(CUmemoryPool handle) {
  int64_t give_up_ns = clock_now_ns() + LONGEST_QUESTION_NS;
  pools_note_shrinking();
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

void pools_end_destroy(struct pool *pool, bool destroyed) {
  pthread_mutex_lock(&lock);
  if (destroyed) {
    memory_release(pool->device, pool->reserved_bytes);
    put(pool, NULL, NULL);
  }
  pool->leaving = false;
  pthread_mutex_unlock(&lock);
}

static void pools_forget(void) {
  pthread_mutex_init(&lock, NULL);
  memset(pools, 0, sizeof pools);
  places = 0;
  pools_note_shrinking();
}
PROCESS_IN_CHILD(pools_forget);

/* ---- reserves, as the driver says ------------------------------------------------------------------------------- */

/* The reserves of pools, as the driver says. */

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
  return answered ? subtract_saturating(reserved_bytes, used_bytes) : 0;
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
    CUmemoryPool handle = __atomic_load_n(&pool->handle, __ATOMIC_RELAXED);
    if (handle != NULL && what == POOLS_TRIM)
      real.cuMemPoolTrimTo(handle, 0);
    settled &= handle == NULL || pools_reread(pool, handle);
    pools_let_go(pool);
  }
  return settled;
}

bool pools_settle(struct device *device, enum pools what) {
  bool settled = settle(device, what);
  graph_memory_settle(device, what);
  return settled;
}

/* Reads again what pools hold: where the program waits, the driver takes back what they do not need. */
void pools_after_wait(void) {
  const struct device *device;
  host_memory_collect();
  for (int i = 0; (device = devices_at(i)) != NULL; i++)
    settle(device, POOLS_REREAD);
}
