/*
 * A program that is linked with the simulated driver itself, and so comes to the GPU by system calls alone.
 *
 * past fill STEP_BYTES PAUSE_S      take memory in steps until it is refused, and say how much that was
 * past grow BYTES STEP_BYTES        take so much in steps of 0.03 s, and stay until it is ended
 * past spin KERNEL SECONDS [FILE]   launch KERNEL for that long, once FILE is there, and count
 *
 * `past child ...` does so in a child that shares its memory, and with that its context.
 */
#include <cuda.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#define IN_FLIGHT 8
#define MODULE ".version 8.0\n.target sm_90\n.address_size 64\n"

static void must(CUresult result) {
  if (result != CUDA_SUCCESS) {
    printf("refused: %d\n", result);
    exit(1);
  }
}

static void pause_s(double seconds) {
  struct timespec time = {(time_t)seconds, (long)((seconds - (double)(time_t)seconds) * 1e9)};
  nanosleep(&time, NULL);
}

static double now_s(void) {
  struct timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return (double)now.tv_sec + (double)now.tv_nsec / 1e9;
}

static void fill(size_t step, double seconds) {
  size_t granted = 0;
  CUdeviceptr pointer;
  CUresult result;
  for (; (result = cuMemAlloc(&pointer, step)) == CUDA_SUCCESS; granted += step)
    pause_s(seconds);
  printf("{\"result\": %d, \"granted_bytes\": %zu}\n", result, granted);
}

static void grow(size_t size, size_t step) {
  CUdeviceptr pointer;
  for (size_t granted = 0; granted < size; granted += step) {
    must(cuMemAlloc(&pointer, step));
    pause_s(0.03);
  }
  for (;;)
    pause();
}

static void spin(const char *kernel, double seconds, const char *file) {
  CUmodule module;
  CUfunction function;
  must(cuModuleLoadData(&module, MODULE));
  must(cuModuleGetFunction(&function, module, kernel));
  while (file != NULL && access(file, F_OK) != 0)
    pause_s(0.02);
  unsigned launches = 0;
  double began = now_s();
  for (; now_s() < began + seconds; launches += IN_FLIGHT) {
    for (int i = 0; i < IN_FLIGHT; i++)
      must(cuLaunchKernel(function, 1, 1, 1, 1, 1, 1, 0, NULL, NULL, NULL));
    must(cuCtxSynchronize());
  }
  printf("%u launches in %f s\n", launches, now_s() - began);
}

int main(int count, char *arguments[]) {
  CUcontext context;
  CUdevice device;
  bool in_child = count > 1 && strcmp(arguments[1], "child") == 0;
  arguments += in_child;
  if (count < 4 + in_child)
    return 2;
  must(cuInit(0));
  must(cuDeviceGet(&device, 0));
  must(cuDevicePrimaryCtxRetain(&context, device));
  must(cuCtxSetCurrent(context));
  if (in_child && vfork() != 0)
    return 0; /* has ended */
  if (strcmp(arguments[1], "fill") == 0)
    fill(strtoull(arguments[2], NULL, 10), strtod(arguments[3], NULL));
  else if (strcmp(arguments[1], "grow") == 0)
    grow(strtoull(arguments[2], NULL, 10), strtoull(arguments[3], NULL, 10));
  else
    spin(arguments[2], strtod(arguments[3], NULL), arguments[4]);
  fflush(stdout);
  if (in_child)
    _exit(0);
  return 0;
}
