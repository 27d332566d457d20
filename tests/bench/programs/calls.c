/*
 * What the driver's calls cost the host, in nanoseconds: the median of many rounds. Prints one line of JSON.
 *
 * calls [launch]    launch: of launches alone
 */
#include "driver.h"

#include <string.h>

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

static double launch_ns(CUfunction function) {
  FIND(cuLaunchKernel);
  FIND(cuCtxSynchronize);
  double rounds[ROUNDS];
  for (int round = 0; round < ROUNDS; round++) {
    double began = now_ns();
    for (int i = 0; i < LAUNCHES; i++)
      check(cuLaunchKernel_(function, 1, 1, 1, 32, 1, 1, 0, NULL, NULL, NULL), "cuLaunchKernel");
    rounds[round] = (now_ns() - began) / LAUNCHES;
    check(cuCtxSynchronize_(), "cuCtxSynchronize");
  }
  return median(rounds);
}

static double pooled_ns(void) {
  FIND(cuMemAllocAsync);
  FIND(cuMemFreeAsync);
  FIND(cuCtxSynchronize);
  double rounds[ROUNDS];
  CUdeviceptr pointer;
  for (int round = 0; round < ROUNDS; round++) {
    double began = now_ns();
    for (int i = 0; i < ALLOCATIONS; i++) {
      check(cuMemAllocAsync_(&pointer, 4096, NULL), "cuMemAllocAsync");
      check(cuMemFreeAsync_(pointer, NULL), "cuMemFreeAsync");
    }
    rounds[round] = (now_ns() - began) / ALLOCATIONS;
    check(cuCtxSynchronize_(), "cuCtxSynchronize");
  }
  return median(rounds);
}

static double large_ns(__typeof__(cuMemAlloc) *allocate, __typeof__(cuMemFree) *release) {
  double rounds[ROUNDS];
  CUdeviceptr pointer;
  for (int round = 0; round < ROUNDS; round++) {
    double began = now_ns();
    for (int i = 0; i < 10; i++) {
      check(allocate(&pointer, 1 << 20), "cuMemAlloc");
      check(release(pointer), "cuMemFree");
    }
    rounds[round] = (now_ns() - began) / 10;
  }
  return median(rounds);
}

static CUfunction set_up(void) {
  FIND(cuInit);
  FIND(cuDevicePrimaryCtxRetain);
  FIND(cuCtxSetCurrent);
  FIND(cuModuleLoadData);
  FIND(cuModuleGetFunction);
  CUcontext context;
  CUmodule module;
  CUfunction function;
  check(cuInit_(0), "cuInit");
  check(cuDevicePrimaryCtxRetain_(&context, 0), "cuDevicePrimaryCtxRetain");
  check(cuCtxSetCurrent_(context), "cuCtxSetCurrent");
  check(cuModuleLoadData_(&module, empty_kernel), "cuModuleLoadData");
  check(cuModuleGetFunction_(&function, module, "empty"), "cuModuleGetFunction");
  return function;
}

int main(int argc, char **argv) {
  printf("{\"cuLaunchKernel\": %.1f", launch_ns(set_up()));
  if (argc > 1 && strcmp(argv[1], "launch") == 0) {
    puts("}");
    return 0;
  }
  FIND(cuMemAlloc);
  FIND(cuMemFree);
  printf(", \"cuMemAllocAsync+cuMemFreeAsync 4 KiB\": %.1f", pooled_ns());
  printf(", \"cuMemAlloc+cuMemFree 1 MiB\": %.1f", large_ns(cuMemAlloc_, cuMemFree_));
  static const int counts[] = {10, 1000, 20000, MOST_LIVE};
  for (int i = 0; i < 4; i++)
    measure_allocations(cuMemAlloc_, cuMemFree_, counts[i]);
  puts("}");
  return 0;
}
