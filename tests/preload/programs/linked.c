/* A program that is linked with libcuda, and so calls it without any lookup. Prints total and free MiB, and the codes
 * of an allocation of 1 GiB and of one more. */
#include <cuda.h>
#include <stdio.h>

int main(void) {
  CUdevice device;
  CUcontext context;
  CUdeviceptr first = 0, second = 0;
  size_t free_bytes = 0, total_bytes = 0;
  if (cuInit(0) != CUDA_SUCCESS || cuDeviceGet(&device, 0) != CUDA_SUCCESS ||
      cuDevicePrimaryCtxRetain(&context, device) != CUDA_SUCCESS || cuCtxSetCurrent(context) != CUDA_SUCCESS)
    return 2;
  cuMemGetInfo(&free_bytes, &total_bytes);
  CUresult granted = cuMemAlloc(&first, 1UL << 30);
  CUresult refused = cuMemAlloc(&second, 1UL << 30);
  printf("%zu %zu %d %d\n", total_bytes >> 20, free_bytes >> 20, (int)granted, (int)refused);
  return cuMemFree(first) != CUDA_SUCCESS;
}
