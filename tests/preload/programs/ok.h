/* For test programs: a call of the driver that fails ends them, and says which; and the time. */
#pragma once

#include <cuda.h>

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

static void check(CUresult result, const char *what) {
  if (result == CUDA_SUCCESS)
    return;
  fprintf(stderr, "%s: error %d\n", what, (int)result);
  abort();
}
#define OK(call) check((call), #call)

static inline int64_t now_ns(void) {
  struct timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return now.tv_sec * 1000000000LL + now.tv_nsec;
}

static inline double now_s(void) {
  return (double)now_ns() / 1e9;
}
