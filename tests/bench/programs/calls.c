/*
 * What the driver's calls cost the host, in nanoseconds: the median of many rounds. Prints one line of JSON.
 */
#include "driver.h"

#define ROUNDS 101
#define LAUNCHES 500
#define ALLOCATIONS 200

static const char *const empty_kernel =
    ".version 7.0\n.target sm_50\n.address_size 64\n.visible .entry empty() { ret; }\n";

static int ascending(const void *a, const void *b) {
  double difference = *(const double *)a - *(const double *)b;
  return (difference > 0) - (difference < 0);
}

static double median(double *values) {
  qsort(values, ROUNDS, sizeof *values, ascending);
  return values[ROUNDS / 2];
}

int main(void) {
  FIND(cuInit);
  FIND(cuDevicePrimaryCtxRetain);
  FIND(cuCtxSetCurrent);
  FIND(cuCtxSynchronize);
  FIND(cuModuleLoadData);
  FIND(cuModuleGetFunction);
  FIND(cuLaunchKernel);
  FIND(cuMemAlloc);
  FIND(cuMemFree);
  FIND(cuMemAllocAsync);
  FIND(cuMemFreeAsync);

  CUcontext context;
  CUmodule module;
  CUfunction function;
  check(cuInit_(0), "cuInit");
  check(cuDevicePrimaryCtxRetain_(&context, 0), "cuDevicePrimaryCtxRetain");
  check(cuCtxSetCurrent_(context), "cuCtxSetCurrent");
  check(cuModuleLoadData_(&module, empty_kernel), "cuModuleLoadData");
  check(cuModuleGetFunction_(&function, module, "empty"), "cuModuleGetFunction");

  double launch[ROUNDS], allocate[ROUNDS], release[ROUNDS], pooled[ROUNDS], large[ROUNDS];
  static CUdeviceptr pointers[ALLOCATIONS];
  for (int round = 0; round < ROUNDS; round++) {
    double began = now_ns();
    for (int i = 0; i < LAUNCHES; i++)
      check(cuLaunchKernel_(function, 1, 1, 1, 32, 1, 1, 0, NULL, NULL, NULL), "cuLaunchKernel");
    launch[round] = (now_ns() - began) / LAUNCHES;
    check(cuCtxSynchronize_(), "cuCtxSynchronize");

    began = now_ns();
    for (int i = 0; i < ALLOCATIONS; i++)
      check(cuMemAlloc_(&pointers[i], 4096), "cuMemAlloc");
    allocate[round] = (now_ns() - began) / ALLOCATIONS;
    began = now_ns();
    for (int i = 0; i < ALLOCATIONS; i++)
      check(cuMemFree_(pointers[i]), "cuMemFree");
    release[round] = (now_ns() - began) / ALLOCATIONS;

    began = now_ns();
    for (int i = 0; i < ALLOCATIONS; i++) {
      check(cuMemAllocAsync_(&pointers[0], 4096, NULL), "cuMemAllocAsync");
      check(cuMemFreeAsync_(pointers[0], NULL), "cuMemFreeAsync");
    }
    pooled[round] = (now_ns() - began) / ALLOCATIONS;
    check(cuCtxSynchronize_(), "cuCtxSynchronize");

    began = now_ns();
    for (int i = 0; i < 10; i++) {
      check(cuMemAlloc_(&pointers[0], 1 << 20), "cuMemAlloc");
      check(cuMemFree_(pointers[0]), "cuMemFree");
    }
    large[round] = (now_ns() - began) / 10;
  }
  printf("{\"cuLaunchKernel\": %.1f, \"cuMemAlloc 4 KiB\": %.1f, \"cuMemFree\": %.1f, "
         "\"cuMemAllocAsync+cuMemFreeAsync 4 KiB\": %.1f, \"cuMemAlloc+cuMemFree 1 MiB\": %.1f}\n",
         median(launch), median(allocate), median(release), median(pooled), median(large));
  return 0;
}
