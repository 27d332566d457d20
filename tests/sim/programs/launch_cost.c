/* Prints how many nanoseconds of the host one cuLaunchKernel takes: the best of many rounds. With an argument it goes
 * on without end. */
#include <stdio.h>
#include <time.h>

#include <cuda.h>

#define ROUNDS 50
#define LAUNCHES 1000

static double now_ns(void) {
  struct timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return (double)now.tv_sec * 1e9 + (double)now.tv_nsec;
}

int main(int argc, char **argv) {
  (void)argv;
  CUcontext context;
  CUmodule module;
  CUfunction kernel;
  double best_ns = 1e9;
  if (cuInit(0) || cuDevicePrimaryCtxRetain(&context, 0) || cuCtxSetCurrent(context) ||
      cuModuleLoadData(&module, "image") || cuModuleGetFunction(&kernel, module, "nothing_0us"))
    return 1;
  for (int round = 0; round < ROUNDS || argc > 1; round++) {
    double began_ns = now_ns();
    for (int i = 0; i < LAUNCHES; i++)
      cuLaunchKernel(kernel, 1, 1, 1, 1, 1, 1, 0, NULL, NULL, NULL);
    double each_ns = (now_ns() - began_ns) / LAUNCHES;
    if (each_ns < best_ns)
      best_ns = each_ns;
  }
  printf("%.0f\n", best_ns);
  return 0;
}
