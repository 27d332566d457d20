/* For test programs: a call of the driver that fails ends them, and says which. */
#ifndef OK_H
#define OK_H

#include <cuda.h>

#include <stdio.h>
#include <stdlib.h>

static void check(CUresult result, const char *what) {
  if (result == CUDA_SUCCESS)
    return;
  fprintf(stderr, "%s: error %d\n", what, (int)result);
  abort();
}
#define OK(call) check((call), #call)

#endif
