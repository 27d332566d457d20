/*
 * Kernels on two GPUs that wait for each other, as those of a collective do: each says that it is there, and ends when
 * the other one is. Prints one line of JSON.
 *
 * exchange SECONDS FIRST    FIRST: the GPU, 0 or 1, whose kernel is launched first at the beginning; then they
 * alternate
 */
#include "driver.h"
#include "simulated.h"

#define GPUS 2

static const char *const source = ".version 7.0\n.target sm_50\n.address_size 64\n"
                                  ".visible .entry meet(.param .u64 mine, .param .u64 others, .param .u32 number) {\n"
                                  ".reg .pred %p<2>; .reg .u32 %r<3>; .reg .u64 %d<3>;\n"
                                  "ld.param.u64 %d1, [mine]; ld.param.u64 %d2, [others]; ld.param.u32 %r1, [number];\n"
                                  "st.volatile.global.u32 [%d1], %r1; membar.sys;\n"
                                  "look: ld.volatile.global.u32 %r2, [%d2]; setp.lt.u32 %p1, %r2, %r1; @%p1 bra look;\n"
                                  "ret; }\n";

static struct {
  CUcontext context;
  CUfunction function;
  CUstream stream;
} gpus[GPUS];

static void set_up(int gpu) {
  FIND(cuDevicePrimaryCtxRetain);
  FIND(cuCtxSetCurrent);
  FIND(cuModuleLoadData);
  FIND(cuModuleGetFunction);
  FIND(cuStreamCreate);
  CUmodule module;
  check(cuDevicePrimaryCtxRetain_(&gpus[gpu].context, gpu), "cuDevicePrimaryCtxRetain");
  check(cuCtxSetCurrent_(gpus[gpu].context), "cuCtxSetCurrent");
  check(cuModuleLoadData_(&module, source), "cuModuleLoadData");
  const char *name = !simulated_gpu() ? "meet" : gpu == 0 ? "zero_until_one" : "one_until_zero";
  check(cuModuleGetFunction_(&gpus[gpu].function, module, name), "cuModuleGetFunction");
  check(cuStreamCreate_(&gpus[gpu].stream, CU_STREAM_NON_BLOCKING), "cuStreamCreate");
}

/* Numbers of both GPUs, on cache lines of their own, in host memory. */
static CUdeviceptr make_numbers(void) {
  FIND(cuMemHostAlloc);
  void *memory;
  check(cuMemHostAlloc_(&memory, 4096, CU_MEMHOSTALLOC_PORTABLE | CU_MEMHOSTALLOC_DEVICEMAP), "cuMemHostAlloc");
  for (int i = 0; i < 4096; i++)
    ((volatile char *)memory)[i] = 0;
  return (CUdeviceptr)memory;
}

static void launch(int gpu, CUdeviceptr numbers, unsigned number) {
  FIND(cuCtxSetCurrent);
  FIND(cuLaunchKernel);
  CUdeviceptr mine = numbers + 256 * (unsigned)gpu, others = numbers + 256 * (unsigned)(1 - gpu);
  void *parameters[] = {&mine, &others, &number};
  check(cuCtxSetCurrent_(gpus[gpu].context), "cuCtxSetCurrent");
  check(cuLaunchKernel_(gpus[gpu].function, 1, 1, 1, 1, 1, 1, 0, gpus[gpu].stream, parameters, NULL), "cuLaunchKernel");
}

static void wait_for(int gpu) {
  FIND(cuCtxSetCurrent);
  FIND(cuStreamSynchronize);
  check(cuCtxSetCurrent_(gpus[gpu].context), "cuCtxSetCurrent");
  check(cuStreamSynchronize_(gpus[gpu].stream), "cuStreamSynchronize");
}

int main(int argc, char **argv) {
  if (argc != 3) {
    fprintf(stderr, "usage: exchange SECONDS FIRST\n");
    return 2;
  }
  FIND(cuInit);
  double length_ns = atof(argv[1]) * 1e9;
  int first = atoi(argv[2]) % GPUS;
  check(cuInit_(0), "cuInit");
  for (int gpu = 0; gpu < GPUS; gpu++)
    set_up(gpu);
  CUdeviceptr numbers = make_numbers();
  unsigned exchanges = 0;
  double began_ns = now_ns(), now = began_ns, longest_ns = 0;
  for (; now < began_ns + length_ns; first = 1 - first) {
    double before_ns = now;
    exchanges++;
    launch(first, numbers, exchanges);
    launch(1 - first, numbers, exchanges);
    wait_for(0);
    wait_for(1);
    now = now_ns();
    longest_ns = now - before_ns > longest_ns ? now - before_ns : longest_ns;
  }
  printf("{\"exchanges\": %u, \"seconds\": %.3f, \"longest_ms\": %.3f}\n", exchanges, (now - began_ns) / 1e9,
         longest_ns / 1e6);
  return 0;
}
