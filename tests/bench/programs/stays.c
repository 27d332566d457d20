/* A program with a context and 4 MiB of memory: it says so by a byte, and stays until its input ends. */
#include "driver.h"

#include <unistd.h>

#define BYTES ((size_t)4 << 20)

int main(void) {
  CUcontext context;
  CUdeviceptr pointer;
  char byte = '.';
  FIND(cuInit);
  FIND(cuDevicePrimaryCtxRetain);
  FIND(cuCtxSetCurrent);
  FIND(cuMemAlloc);
  check(cuInit_(0), "cuInit");
  check(cuDevicePrimaryCtxRetain_(&context, 0), "cuDevicePrimaryCtxRetain");
  check(cuCtxSetCurrent_(context), "cuCtxSetCurrent");
  check(cuMemAlloc_(&pointer, BYTES), "cuMemAlloc");
  if (write(STDOUT_FILENO, &byte, 1) != 1)
    return 1;
  return read(STDIN_FILENO, &byte, 1) != 0;
}
