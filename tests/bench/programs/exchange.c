/*
 * Kernels on two GPUs that wait for each other, as those of a collective do: each says that it is there, and ends when
 * the other one is. Before them each GPU may have work to do. Prints one line of JSON.
 *
 * exchange SECONDS FIRST [KERNELS]    FIRST: the GPU, 0 or 1, that is launched on first at the beginning; then they
 *                                     alternate
 *                                     KERNELS: of a millisecond, on each GPU before each exchange
 */
#include "driver.h"
#include "simulated.h"

#define GPUS 2
#define ITERATIONS_PER_MS 290000 /* iterations of the kernel's loop, on an H200 at 1980 MHz */

static const char *const source =
    ".version 7.0\n.target sm_50\n.address_size 64\n"
    ".visible .entry meet(.param .u64 mine, .param .u64 others, .param .u32 number) {\n"
    ".reg .pred %p<2>; .reg .u32 %r<3>; .reg .u64 %d<3>;\n"
    "ld.param.u64 %d1, [mine]; ld.param.u64 %d2, [others]; ld.param.u32 %r1, [number];\n"
    "st.volatile.global.u32 [%d1], %r1; membar.sys;\n"
    "look: ld.volatile.global.u32 %r2, [%d2]; setp.lt.u32 %p1, %r2, %r1; @%p1 bra look;\n"
    "ret; }\n"
    ".visible .entry work(.param .u64 unused, .param .u32 iterations) {\n"
    ".reg .pred %p<2>; .reg .u32 %r<3>; .reg .u64 %d<2>; .reg .f32 %f<2>;\n"
    "ld.param.u64 %d1, [unused]; ld.param.u32 %r1, [iterations]; mov.u32 %r2, 0; mov.f32 %f1, 0f3F800000;\n"
    "step: fma.rn.f32 %f1, %f1, 0f3F7FFFFF, 0f33800000; add.u32 %r2, %r2, 1;\n"
    "setp.lt.u32 %p1, %r2, %r1; @%p1 bra step;\n"
    "setp.lt.f32 %p1, %f1, 0f00000000; @%p1 st.global.f32 [%d1], %f1;\n"
    "ret; }\n";

#define USED(X)                                                                                                        \
  X(cuInit)                                                                                                            \
  X(cuDevicePrimaryCtxRetain)                                                                                          \
  X(cuCtxSetCurrent)                                                                                                   \
  X(cuModuleLoadData)                                                                                                  \
  X(cuModuleGetFunction)                                                                                               \
  X(cuStreamCreate)                                                                                                    \
  X(cuMemHostAlloc)                                                                                                    \
  X(cuLaunchKernel)                                                                                                    \
  X(cuStreamSynchronize)

/* Found once: to find one takes longer than to call it. */
static struct {
#define X(name) __typeof__(name) *name;
  USED(X)
#undef X
} driver;

static struct {
  CUcontext context;
  CUfunction meet, work;
  CUstream stream;
} gpus[GPUS];

static CUdeviceptr numbers; /* both GPUs', on cache lines of their own, in host memory */

static void set_up(int gpu) {
  CUmodule module;
  check(driver.cuDevicePrimaryCtxRetain(&gpus[gpu].context, gpu), "cuDevicePrimaryCtxRetain");
  check(driver.cuCtxSetCurrent(gpus[gpu].context), "cuCtxSetCurrent");
  check(driver.cuModuleLoadData(&module, source), "cuModuleLoadData");
  const char *meet = !simulated_gpu() ? "meet" : gpu == 0 ? "zero_until_one" : "one_until_zero";
  const char *work = !simulated_gpu() ? "work" : simulated_name(1000);
  check(driver.cuModuleGetFunction(&gpus[gpu].meet, module, meet), "cuModuleGetFunction");
  check(driver.cuModuleGetFunction(&gpus[gpu].work, module, work), "cuModuleGetFunction");
  check(driver.cuStreamCreate(&gpus[gpu].stream, CU_STREAM_NON_BLOCKING), "cuStreamCreate");
}

static void make_numbers(void) {
  void *memory;
  check(driver.cuMemHostAlloc(&memory, 4096, CU_MEMHOSTALLOC_PORTABLE | CU_MEMHOSTALLOC_DEVICEMAP), "cuMemHostAlloc");
  memset(memory, 0, 4096);
  numbers = (CUdeviceptr)memory;
}

static void launch(int gpu, CUfunction function, void **parameters) {
  check(driver.cuCtxSetCurrent(gpus[gpu].context), "cuCtxSetCurrent");
  check(driver.cuLaunchKernel(function, 1, 1, 1, 1, 1, 1, 0, gpus[gpu].stream, parameters, NULL), "cuLaunchKernel");
}

static void work(int gpu) {
  unsigned iterations = ITERATIONS_PER_MS;
  void *parameters[] = {&numbers, &iterations};
  launch(gpu, gpus[gpu].work, parameters);
}

static void meet(int gpu, unsigned number) {
  CUdeviceptr mine = numbers + 256 * (unsigned)gpu, others = numbers + 256 * (unsigned)(1 - gpu);
  void *parameters[] = {&mine, &others, &number};
  launch(gpu, gpus[gpu].meet, parameters);
}

static void wait_for(int gpu) {
  check(driver.cuCtxSetCurrent(gpus[gpu].context), "cuCtxSetCurrent");
  check(driver.cuStreamSynchronize(gpus[gpu].stream), "cuStreamSynchronize");
}

int main(int argc, char **argv) {
  if (argc != 3 && argc != 4) {
    fprintf(stderr, "usage: exchange SECONDS FIRST [KERNELS]\n");
    return 2;
  }
#define X(name) driver.name = (__typeof__(name) *)find(#name);
  USED(X)
#undef X
  double length_ns = atof(argv[1]) * 1e9;
  int first = atoi(argv[2]) % GPUS, kernels = argc == 4 ? atoi(argv[3]) : 0;
  check(driver.cuInit(0), "cuInit");
  for (int gpu = 0; gpu < GPUS; gpu++)
    set_up(gpu);
  make_numbers();
  unsigned exchanges = 0;
  double began_ns = now_ns(), now = began_ns, longest_ns = 0;
  for (; now < began_ns + length_ns; first = 1 - first) {
    double before_ns = now;
    exchanges++;
    for (int i = 0; i < GPUS * kernels; i++)
      work((first + i) % GPUS);
    meet(first, exchanges);
    meet(1 - first, exchanges);
    wait_for(0);
    wait_for(1);
    now = now_ns();
    longest_ns = now - before_ns > longest_ns ? now - before_ns : longest_ns;
  }
  printf("{\"exchanges\": %u, \"began_at_s\": %.6f, \"seconds\": %.3f, \"longest_ms\": %.3f}\n", exchanges,
         began_ns / 1e9, (now - began_ns) / 1e9, longest_ns / 1e6);
  return 0;
}
