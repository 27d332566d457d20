/* Threads that make and destroy streams, contexts, pools and memory at once, and launch and wait in between: all of it
 * right, so that nothing may fail but an allocation. Arguments: how many seconds, and a seed. Prints "done". */
#define __CUDA_API_VERSION_INTERNAL
#include "kernel.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <string.h>
#include <unistd.h>

#define THREADS 8

static CUcontext primary;
static atomic_bool stop;

static void use_a_pool(CUstream stream) {
  CUmemPoolProps properties;
  CUmemoryPool pool;
  CUdeviceptr pointer;
  memset(&properties, 0, sizeof properties);
  properties.allocType = CU_MEM_ALLOCATION_TYPE_PINNED;
  properties.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
  OK(cuMemPoolCreate(&pool, &properties));
  if (cuMemAllocFromPoolAsync(&pointer, 3000000, pool, stream) == CUDA_SUCCESS)
    OK(cuMemFreeAsync(pointer, stream));
  OK(cuMemPoolDestroy(pool));
}

static void use_memory(unsigned size) {
  CUdeviceptr pointer;
  char byte;
  if (cuMemAlloc_v2(&pointer, size) != CUDA_SUCCESS)
    return;
  OK(cuMemcpyDtoH_v2(&byte, pointer, 1));
  OK(cuMemFree_v2(pointer));
}

static void do_something(CUfunction function, CUstream stream, unsigned *seed) {
  CUcontext context;
  size_t free_bytes, total_bytes;
  switch (rand_r(seed) % 8) {
  case 0:
    OK(cuStreamSynchronize(stream));
    break;
  case 1:
    OK(cuLaunchKernel_ptsz(function, 1, 1, 1, 1, 1, 1, 0, NULL, NULL, NULL));
    OK(cuStreamSynchronize_ptsz(NULL));
    break;
  case 2:
    OK(cuDevicePrimaryCtxRetain(&context, 0));
    OK(cuDevicePrimaryCtxRelease_v2(0));
    break;
  case 3:
    use_memory(1 + (unsigned)rand_r(seed) % 4000000);
    break;
  case 4:
    use_a_pool(stream);
    break;
  case 5:
    OK(cuMemGetInfo_v2(&free_bytes, &total_bytes));
    if (free_bytes > total_bytes)
      abort();
    break;
  case 6:
    OK(cuCtxSynchronize());
    break;
  default:
    break;
  }
}

static void come_and_go(CUfunction function, unsigned *seed) {
  for (int i = 0; i < 200 && !stop; i++) {
    CUstream stream;
    OK(cuStreamCreate(&stream, (unsigned)rand_r(seed) % 2));
    for (int launches = rand_r(seed) % 20; launches > 0; launches--)
      OK(cuLaunchKernel(function, 1, 1, 1, 1, 1, 1, 0, stream, NULL, NULL));
    do_something(function, stream, seed);
    OK(cuStreamDestroy_v2(stream));
  }
}

/* Every fourth thread has contexts of its own, the others share the primary one. */
static void *work(void *argument) {
  unsigned seed = (unsigned)(uintptr_t)argument;
  while (!stop) {
    CUcontext own = NULL;
    if (seed % 4 == 3)
      OK(cuCtxCreate_v2(&own, 0, 0));
    else
      OK(cuCtxSetCurrent(primary));
    unsigned state = seed;
    come_and_go(kernel_of("spin_5us"), &state);
    if (own != NULL)
      OK(cuCtxDestroy_v2(own));
  }
  return NULL;
}

int main(int argument_count, char **arguments) {
  if (argument_count != 3)
    return 2;
  pthread_t threads[THREADS];
  OK(cuInit(0));
  OK(cuDevicePrimaryCtxRetain(&primary, 0));
  for (uintptr_t i = 0; i < THREADS; i++)
    if (pthread_create(&threads[i], NULL, work, (void *)((uintptr_t)atoi(arguments[2]) * THREADS + i)) != 0)
      abort();
  sleep((unsigned)atoi(arguments[1]));
  stop = true;
  for (int i = 0; i < THREADS; i++)
    pthread_join(threads[i], NULL);
  puts("done");
  return 0;
}
