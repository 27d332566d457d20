/*
 * Measures what the driver's calls cost the host with the library and without it, in one process: the program finds the
 * driver's functions first, and then, with the library loaded, asks for them as a framework does and gets the caught
 * ones. Both are measured in turns, so that what differs from process to process, or from one moment to the next, does
 * not show. Prints one line of JSON: for each call what it takes natively, how much more with the library, and the
 * ratio; medians of many rounds.
 *
 * calls LIBRARY [launch]    launch: of launches alone
 *
 * Launches flat out tell nothing of a compute limit: while the other half runs, its burst comes back.
 */
#include "driver.h"

#include <string.h>

#define ROUNDS 101
#define LAUNCHES 500
#define MANY_LAUNCHES 5000 /* more than the driver's queue holds */
#define MANY_ROUNDS 31
#define ALLOCATIONS 200
#define LARGE_ALLOCATIONS 10
#define MOST_LIVE 100000

/* The second takes 5000 cycles, with its beginning some 4 us on an H200; a simulated GPU goes by its name. */
static const char *const kernels = ".version 7.0\n.target sm_50\n.address_size 64\n.visible .entry empty() { ret; }\n"
                                   ".visible .entry spin_4us() { .reg .pred %p<2>; .reg .u64 %d<4>;\n"
                                   "mov.u64 %d1, %clock64; again: mov.u64 %d2, %clock64; sub.u64 %d3, %d2, %d1;\n"
                                   "setp.lt.u64 %p1, %d3, 5000; @%p1 bra again; ret; }\n";

enum side { NATIVE, CAUGHT, SIDES };

#define USED(X)                                                                                                        \
  X(cuInit)                                                                                                            \
  X(cuDevicePrimaryCtxRetain)                                                                                          \
  X(cuCtxSetCurrent)                                                                                                   \
  X(cuCtxSynchronize)                                                                                                  \
  X(cuModuleLoadData)                                                                                                  \
  X(cuModuleGetFunction)                                                                                               \
  X(cuLaunchKernel)                                                                                                    \
  X(cuMemAlloc)                                                                                                        \
  X(cuMemFree)                                                                                                         \
  X(cuMemAllocAsync)                                                                                                   \
  X(cuMemFreeAsync)

static struct functions {
#define X(name) __typeof__(name) *name;
  USED(X)
#undef X
} functions[SIDES];

static void find_all(struct functions *found) {
#define X(name) found->name = (__typeof__(name) *)find(#name);
  USED(X)
#undef X
}

static void find_both(const char *library) {
  find_all(&functions[NATIVE]);
  void *handle = dlopen(library, RTLD_NOW | RTLD_GLOBAL);
  if (handle == NULL) {
    fprintf(stderr, "%s\n", dlerror());
    exit(1);
  }
  *(void **)&find_symbol = dlsym(handle, "dlsym");
  find_all(&functions[CAUGHT]);
  if (functions[CAUGHT].cuLaunchKernel == functions[NATIVE].cuLaunchKernel) {
    fprintf(stderr, "%s catches no launch\n", library);
    exit(1);
  }
}

static CUfunction kernel, empty, spin_4us;
static int live_count;

static void set_up(void) {
  const struct functions *caught = &functions[CAUGHT];
  CUcontext context;
  CUmodule module;
  check(caught->cuInit(0), "cuInit");
  check(caught->cuDevicePrimaryCtxRetain(&context, 0), "cuDevicePrimaryCtxRetain");
  check(caught->cuCtxSetCurrent(context), "cuCtxSetCurrent");
  check(caught->cuModuleLoadData(&module, kernels), "cuModuleLoadData");
  check(caught->cuModuleGetFunction(&empty, module, "empty"), "cuModuleGetFunction");
  check(caught->cuModuleGetFunction(&spin_4us, module, "spin_4us"), "cuModuleGetFunction");
}

static void launch(const struct functions *use, int count) {
  for (int i = 0; i < count; i++)
    check(use->cuLaunchKernel(kernel, 1, 1, 1, 32, 1, 1, 0, NULL, NULL, NULL), "cuLaunchKernel");
}

/* ---- what is measured: each gives the nanoseconds of one call, or of a pair -------------------------------------- */

static double launches(const struct functions *use) {
  double began = now_ns();
  launch(use, LAUNCHES);
  double took = now_ns() - began;
  check(use->cuCtxSynchronize(), "cuCtxSynchronize");
  return took / LAUNCHES;
}

/* The program does nothing else, and waits once at the end: the slower one shows, the host or the GPU. */
static double flat_out(const struct functions *use) {
  double began = now_ns();
  launch(use, MANY_LAUNCHES);
  check(use->cuCtxSynchronize(), "cuCtxSynchronize");
  return (now_ns() - began) / MANY_LAUNCHES;
}

static double pooled(const struct functions *use) {
  CUdeviceptr pointer;
  double began = now_ns();
  for (int i = 0; i < ALLOCATIONS; i++) {
    check(use->cuMemAllocAsync(&pointer, 4096, NULL), "cuMemAllocAsync");
    check(use->cuMemFreeAsync(pointer, NULL), "cuMemFreeAsync");
  }
  double took = now_ns() - began;
  check(use->cuCtxSynchronize(), "cuCtxSynchronize");
  return took / ALLOCATIONS;
}

static double in_blocks(const struct functions *use, size_t bytes) {
  CUdeviceptr pointer;
  double began = now_ns();
  for (int i = 0; i < LARGE_ALLOCATIONS; i++) {
    check(use->cuMemAlloc(&pointer, bytes), "cuMemAlloc");
    check(use->cuMemFree(pointer), "cuMemFree");
  }
  return (now_ns() - began) / LARGE_ALLOCATIONS;
}

static double medium(const struct functions *use) {
  return in_blocks(use, 1 << 20);
}

/* PyTorch asks for this much at a time at least, and each piece is shown to the container's other processes. */
static double large(const struct functions *use) {
  return in_blocks(use, 20 << 20);
}

/* More than a process keeps of the shares above its own. */
static double largest(const struct functions *use) {
  return in_blocks(use, 40 << 20);
}

static double small(const struct functions *use) {
  CUdeviceptr pointers[ALLOCATIONS];
  double began = now_ns();
  for (int i = 0; i < ALLOCATIONS; i++)
    check(use->cuMemAlloc(&pointers[i], 4096), "cuMemAlloc");
  for (int i = 0; i < ALLOCATIONS; i++)
    check(use->cuMemFree(pointers[i]), "cuMemFree");
  return (now_ns() - began) / ALLOCATIONS;
}

/* 4 KiB each. */
static void let_live(int count) {
  CUdeviceptr pointer;
  for (; live_count < count; live_count++)
    check(functions[CAUGHT].cuMemAlloc(&pointer, 4096), "cuMemAlloc");
}

/* ---- comparing --------------------------------------------------------------------------------------------------- */

static int ascending(const void *a, const void *b) {
  double difference = *(const double *)a - *(const double *)b;
  return (difference > 0) - (difference < 0);
}

static double median(double *values, int count) {
  qsort(values, (size_t)count, sizeof *values, ascending);
  return values[count / 2];
}

static void compare(const char *name, double (*measure)(const struct functions *), int rounds) {
  static const char *separator = "{";
  double native_ns[ROUNDS], more_ns[ROUNDS], ratio[ROUNDS];
  for (int round = -1; round < rounds; round++) {
    double took_ns[SIDES];
    for (int i = 0; i < SIDES; i++) {
      int side = (round + 1 + i) % SIDES;
      took_ns[side] = measure(&functions[side]);
    }
    if (round < 0) /* the first makes what the others find */
      continue;
    native_ns[round] = took_ns[NATIVE];
    more_ns[round] = took_ns[CAUGHT] - took_ns[NATIVE];
    ratio[round] = took_ns[CAUGHT] / took_ns[NATIVE];
  }
  printf("%s\"%s\": {\"native_ns\": %.1f, \"more_ns\": %.1f, \"ratio\": %.4f}", separator, name,
         median(native_ns, rounds), median(more_ns, rounds), median(ratio, rounds));
  separator = ", ";
}

int main(int argc, char **argv) {
  if (argc < 2) {
    fprintf(stderr, "usage: %s LIBRARY [launch]\n", argv[0]);
    return 2;
  }
  find_both(argv[1]);
  set_up();
  kernel = empty;
  compare("cuLaunchKernel", launches, ROUNDS);
  compare("empty kernels, flat out", flat_out, MANY_ROUNDS);
  kernel = spin_4us;
  compare("kernels of 4 us, flat out", flat_out, MANY_ROUNDS);
  if (argc == 2) {
    compare("cuMemAllocAsync+cuMemFreeAsync 4 KiB", pooled, ROUNDS);
    compare("cuMemAlloc+cuMemFree 1 MiB", medium, ROUNDS);
    compare("cuMemAlloc+cuMemFree 20 MiB", large, ROUNDS);
    compare("cuMemAlloc+cuMemFree 40 MiB", largest, ROUNDS);
    static const int counts[] = {10, 1000, 20000, MOST_LIVE};
    for (int i = 0; i < 4; i++) {
      char name[64];
      snprintf(name, sizeof name, "cuMemAlloc+cuMemFree 4 KiB, %d live", counts[i]);
      let_live(counts[i]);
      compare(name, small, ROUNDS);
    }
  }
  puts("}");
  return 0;
}
