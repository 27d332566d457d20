/*
 * What the driver's calls cost the host, in nanoseconds: the median of many rounds. Prints one line of JSON.
 */
#include "driver.h"

#define ROUNDS 101
#define LAUNCHES 500
#define ALLOCATIONS 200
#define MOST_LIVE 100000

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

static CUdeviceptr live[MOST_LIVE + ALLOCATIONS];

/* 4 KiB each, while `count` others live. */
static void measure_allocations(__typeof__(cuMemAlloc) *allocate, __typeof__(cuMemFree) *release, int count) {
  static int made;
  double allocations[ROUNDS], releases[ROUNDS];
  for (; made < count; made++)
    check(allocate(&live[made], 4096), "cuMemAlloc");
  for (int round = 0; round < ROUNDS; round++) {
    double began = now_ns();
    for (int i = 0; i < ALLOCATIONS; i++)
      check(allocate(&live[count + i], 4096), "cuMemAlloc");
    double between = now_ns();
    for (int i = 0; i < ALLOCATIONS; i++)
      check(release(live[count + i]), "cuMemFree");
    allocations[round] = (between - began) / ALLOCATIONS;
    releases[round] = (now_ns() - between) / ALLOCATIONS;
  }
  printf(", \"cuMemAlloc 4 KiB, %d live\": %.1f, \"cuMemFree, %d live\": %.1f", count, median(allocations), count,
         median(releases));
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

  double launch[ROUNDS], pooled[ROUNDS], large[ROUNDS];
  CUdeviceptr pointer;
  for (int round = 0; round < ROUNDS; round++) {
    double began = now_ns();
    for (int i = 0; i < LAUNCHES; i++)
      check(cuLaunchKernel_(function, 1, 1, 1, 32, 1, 1, 0, NULL, NULL, NULL), "cuLaunchKernel");
    launch[round] = (now_ns() - began) / LAUNCHES;
    check(cuCtxSynchronize_(), "cuCtxSynchronize");

    began = now_ns();
    for (int i = 0; i < ALLOCATIONS; i++) {
      check(cuMemAllocAsync_(&pointer, 4096, NULL), "cuMemAllocAsync");
      check(cuMemFreeAsync_(pointer, NULL), "cuMemFreeAsync");
    }
    pooled[round] = (now_ns() - began) / ALLOCATIONS;
    check(cuCtxSynchronize_(), "cuCtxSynchronize");

    began = now_ns();
    for (int i = 0; i < 10; i++) {
      check(cuMemAlloc_(&pointer, 1 << 20), "cuMemAlloc");
      check(cuMemFree_(pointer), "cuMemFree");
    }
    large[round] = (now_ns() - began) / 10;
  }
  printf(
      "{\"cuLaunchKernel\": %.1f, \"cuMemAllocAsync+cuMemFreeAsync 4 KiB\": %.1f, \"cuMemAlloc+cuMemFree 1 MiB\": %.1f",
      median(launch), median(pooled), median(large));
  static const int counts[] = {10, 1000, 20000, MOST_LIVE};
  for (int i = 0; i < 4; i++)
    measure_allocations(cuMemAlloc_, cuMemFree_, counts[i]);
  puts("}");
  return 0;
}
