/*
 * What the driver's calls cost the host, in nanoseconds: the median of many rounds. Prints one line of JSON.
 *
 * calls [launch]    launch: of launches alone
 */
#include "driver.h"

#include <string.h>

#define ROUNDS 101
#define LAUNCHES 500
#define MANY_LAUNCHES 5000 /* more than the driver's queue holds */
#define MANY_ROUNDS 15
#define ALLOCATIONS 200
#define MOST_LIVE 100000

/* The second takes 5000 cycles, with its beginning some 4 us on an H200; a simulated GPU goes by its name. */
static const char *const kernels = ".version 7.0\n.target sm_50\n.address_size 64\n.visible .entry empty() { ret; }\n"
                                   ".visible .entry spin_4us() { .reg .pred %p<2>; .reg .u64 %d<4>;\n"
                                   "mov.u64 %d1, %clock64; again: mov.u64 %d2, %clock64; sub.u64 %d3, %d2, %d1;\n"
                                   "setp.lt.u64 %p1, %d3, 5000; @%p1 bra again; ret; }\n";

static int ascending(const void *a, const void *b) {
  double difference = *(const double *)a - *(const double *)b;
  return (difference > 0) - (difference < 0);
}

static double median_of(double *values, int count) {
  qsort(values, (size_t)count, sizeof *values, ascending);
  return values[count / 2];
}

static double median(double *values) {
  return median_of(values, ROUNDS);
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

/* The program does nothing else, and waits once at the end: the slower one shows, the host or the GPU. */
static double flat_out_ns(CUfunction function) {
  FIND(cuLaunchKernel);
  FIND(cuCtxSynchronize);
  double rounds[MANY_ROUNDS];
  for (int round = 0; round < MANY_ROUNDS; round++) {
    double began = now_ns();
    for (int i = 0; i < MANY_LAUNCHES; i++)
      check(cuLaunchKernel_(function, 1, 1, 1, 32, 1, 1, 0, NULL, NULL, NULL), "cuLaunchKernel");
    check(cuCtxSynchronize_(), "cuCtxSynchronize");
    rounds[round] = (now_ns() - began) / MANY_LAUNCHES;
  }
  return median_of(rounds, MANY_ROUNDS);
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

static CUmodule set_up(void) {
  FIND(cuInit);
  FIND(cuDevicePrimaryCtxRetain);
  FIND(cuCtxSetCurrent);
  FIND(cuModuleLoadData);
  CUcontext context;
  CUmodule module;
  check(cuInit_(0), "cuInit");
  check(cuDevicePrimaryCtxRetain_(&context, 0), "cuDevicePrimaryCtxRetain");
  check(cuCtxSetCurrent_(context), "cuCtxSetCurrent");
  check(cuModuleLoadData_(&module, kernels), "cuModuleLoadData");
  return module;
}

static CUfunction kernel(CUmodule module, const char *name) {
  FIND(cuModuleGetFunction);
  CUfunction function;
  check(cuModuleGetFunction_(&function, module, name), "cuModuleGetFunction");
  return function;
}

int main(int argc, char **argv) {
  CUmodule module = set_up();
  CUfunction empty = kernel(module, "empty");
  printf("{\"empty kernels, flat out\": %.1f", flat_out_ns(empty));
  printf(", \"kernels of 4 us, flat out\": %.1f", flat_out_ns(kernel(module, "spin_4us")));
  printf(", \"cuLaunchKernel\": %.1f", launch_ns(empty));
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
