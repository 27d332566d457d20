/*
 * Allocates and frees at random, by every path, and takes no other answer than success or "out of memory".
 *
 *   churn SECONDS SEED THREADS [KINDS]     of the kinds of memory below, so many; else all
 *
 * The simulated driver's answers are exact for rows of 2048 bytes, and for stream-ordered requests above 2 MiB: its
 * pools do not know which of their addresses have memory. So others are not made here.
 *
 * Then it frees all that it holds, its context too, prints what it did, and waits for the end of standard input.
 * Started alone, with ALONE=1 and one thread, it also checks that nothing is refused that fits.
 */
#include "ok.h"

#include <pthread.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cuda.h>

#define MOST_HELD 24
#define MIB (1024ULL * 1024ULL)

enum kind { PLAIN, ARRAY, PITCHED, MANAGED, ASYNC, FROM_POOL, MAPPED, ARRAY_3D, KINDS };

struct held {
  enum kind kind;
  CUdeviceptr pointer;
  CUarray array;
  CUmemGenericAllocationHandle handle;
  size_t bytes;
};

struct worker {
  pthread_t thread;
  unsigned seed;
  struct held held[MOST_HELD];
  int count;
  long calls, refused;
  int64_t longest_ns;
  CUmemoryPool pool;
};

static CUcontext context;
static int64_t end_ns;
static bool alone;
static int kinds = KINDS;

static CUmemAllocationProp on_device(void) {
  CUmemAllocationProp properties;
  memset(&properties, 0, sizeof properties);
  properties.type = CU_MEM_ALLOCATION_TYPE_PINNED;
  properties.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
  return properties;
}

static CUresult create_mapped(struct held *held) {
  CUmemAllocationProp properties = on_device();
  held->bytes = (held->bytes + 2 * MIB - 1) / (2 * MIB) * (2 * MIB);
  CUresult result = cuMemCreate(&held->handle, held->bytes, &properties, 0);
  if (result != CUDA_SUCCESS)
    return result;
  OK(cuMemAddressReserve(&held->pointer, held->bytes, 0, 0, 0));
  OK(cuMemMap(held->pointer, held->bytes, 0, held->handle, 0));
  return result;
}

/* The handle and the mapping may go in either order. */
static void destroy_mapped(const struct held *held, bool handle_first) {
  if (handle_first)
    OK(cuMemRelease(held->handle));
  OK(cuMemUnmap(held->pointer, held->bytes));
  if (!handle_first)
    OK(cuMemRelease(held->handle));
  OK(cuMemAddressFree(held->pointer, held->bytes));
}

static CUresult take(struct worker *worker, struct held *held) {
  CUDA_ARRAY_DESCRIPTOR flat = {128, held->bytes / 2048 + 1, CU_AD_FORMAT_FLOAT, 4};
  CUDA_ARRAY3D_DESCRIPTOR deep = {128, 16, held->bytes / 32768 + 1, CU_AD_FORMAT_FLOAT, 4, 0};
  size_t pitch;
  switch (held->kind) {
  case PITCHED:
    return cuMemAllocPitch(&held->pointer, &pitch, 1000, held->bytes / 1000 + 1, 4);
  case MANAGED:
    return cuMemAllocManaged(&held->pointer, held->bytes, CU_MEM_ATTACH_GLOBAL);
  case ASYNC:
    return cuMemAllocAsync(&held->pointer, held->bytes, NULL);
  case FROM_POOL:
    return cuMemAllocFromPoolAsync(&held->pointer, held->bytes, worker->pool, NULL);
  case MAPPED:
    return create_mapped(held);
  case ARRAY:
    return cuArrayCreate(&held->array, &flat);
  case ARRAY_3D:
    return cuArray3DCreate(&held->array, &deep);
  default:
    return cuMemAlloc(&held->pointer, held->bytes);
  }
}

static void give_back(struct worker *worker, struct held *held) {
  switch (held->kind) {
  case ASYNC:
  case FROM_POOL:
    OK(cuMemFreeAsync(held->pointer, NULL));
    break;
  case MAPPED:
    destroy_mapped(held, rand_r(&worker->seed) % 2);
    break;
  case ARRAY:
  case ARRAY_3D:
    OK(cuArrayDestroy(held->array));
    break;
  default:
    OK(cuMemFree(held->pointer));
  }
}

/* Requests of more than 1 MiB take whole blocks, so that what is free says whether they fit. */
static void check_refusal(const struct held *held) {
  size_t free_bytes, total_bytes;
  bool simple = held->kind == PLAIN || held->kind == MANAGED || held->kind == MAPPED;
  if (!alone || !simple || held->bytes <= MIB)
    return;
  OK(cuMemGetInfo(&free_bytes, &total_bytes));
  if ((held->bytes + 2 * MIB - 1) / (2 * MIB) * (2 * MIB) > free_bytes)
    return;
  fprintf(stderr, "%zu bytes refused, %zu are free\n", held->bytes, free_bytes);
  abort();
}

static size_t some_bytes(unsigned *seed) {
  static const size_t most[] = {4096, MIB, 4 * MIB, 64 * MIB};
  return 1 + (size_t)rand_r(seed) % most[rand_r(seed) % 4];
}

static void allocate(struct worker *worker) {
  struct held held = {.kind = (enum kind)(rand_r(&worker->seed) % kinds), .bytes = some_bytes(&worker->seed)};
  if (held.kind == ASYNC || held.kind == FROM_POOL)
    held.bytes += 2 * MIB;
  CUresult result = take(worker, &held);
  if (result == CUDA_SUCCESS) {
    worker->held[worker->count++] = held;
    return;
  }
  if (result != CUDA_ERROR_OUT_OF_MEMORY)
    check(result, "allocation");
  check_refusal(&held);
  worker->refused++;
}

static void free_one(struct worker *worker, int i) {
  give_back(worker, &worker->held[i]);
  worker->held[i] = worker->held[--worker->count];
}

static void *work(void *argument) {
  struct worker *worker = argument;
  CUmemPoolProps properties;
  memset(&properties, 0, sizeof properties);
  properties.allocType = CU_MEM_ALLOCATION_TYPE_PINNED;
  properties.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
  OK(cuCtxSetCurrent(context));
  OK(cuMemPoolCreate(&worker->pool, &properties));
  for (int64_t began_ns = now_ns(); began_ns < end_ns;) {
    bool full = worker->count == MOST_HELD;
    if (!full && (worker->count == 0 || rand_r(&worker->seed) % 2))
      allocate(worker);
    else
      free_one(worker, rand_r(&worker->seed) % worker->count);
    int64_t ended_ns = now_ns();
    if (ended_ns - began_ns > worker->longest_ns)
      worker->longest_ns = ended_ns - began_ns;
    began_ns = ended_ns;
    worker->calls++;
  }
  while (worker->count > 0)
    free_one(worker, 0);
  OK(cuMemPoolDestroy(worker->pool));
  return NULL;
}

int main(int argument_count, char **arguments) {
  if (argument_count != 4 && argument_count != 5)
    return 2;
  if (argument_count == 5)
    kinds = atoi(arguments[4]);
  int threads = atoi(arguments[3]);
  struct worker *workers = calloc((size_t)threads, sizeof *workers);
  CUresult result;
  alone = getenv("ALONE") != NULL;
  OK(cuInit(0));
  /* Processes that came first may have all, until they end. */
  int64_t patient_until_ns = now_ns() + 60000000000;
  while ((result = cuDevicePrimaryCtxRetain(&context, 0)) == CUDA_ERROR_OUT_OF_MEMORY && now_ns() < patient_until_ns)
    nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
  check(result, "context");
  end_ns = now_ns() + (int64_t)(atof(arguments[1]) * 1e9);
  for (int i = 0; i < threads; i++) {
    workers[i].seed = (unsigned)(atoi(arguments[2]) * threads + i);
    if (pthread_create(&workers[i].thread, NULL, work, &workers[i]) != 0)
      abort();
  }
  struct worker all = {0};
  for (int i = 0; i < threads; i++) {
    pthread_join(workers[i].thread, NULL);
    all.calls += workers[i].calls;
    all.refused += workers[i].refused;
    all.longest_ns = workers[i].longest_ns > all.longest_ns ? workers[i].longest_ns : all.longest_ns;
  }
  CUmemoryPool pool;
  OK(cuDeviceGetDefaultMemPool(&pool, 0));
  OK(cuMemPoolTrimTo(pool, 0));
  OK(cuDevicePrimaryCtxRelease(0));
  printf("%ld %ld %ld\n", all.calls, all.refused, (long)(all.longest_ns / 1000));
  fflush(stdout);
  while (getchar() != EOF)
    continue;
  free(workers);
  return 0;
}
