/* Queries of a kernel. */
#include "launch.h"
#include "modules.h"

#define MAX_BLOCKS_PER_MULTIPROCESSOR 32

static CUresult enter_function(CUfunction handle, const void *output, const struct kernel **kernel) {
  FORWARD_IF_ERROR(driver_enter());
  if (!output)
    return driver_leave(CUDA_ERROR_INVALID_VALUE);
  *kernel = kernel_find(handle);
  return *kernel ? CUDA_SUCCESS : driver_leave(CUDA_ERROR_INVALID_HANDLE);
}

CUresult CUDAAPI cuFuncGetName(const char **name, CUfunction function) {
  const struct kernel *kernel;
  FORWARD_IF_ERROR(enter_function(function, name, &kernel));
  *name = kernel->name;
  return driver_leave(CUDA_SUCCESS);
}

CUresult CUDAAPI cuKernelGetName(const char **name, CUkernel kernel) {
  return cuFuncGetName(name, (CUfunction)kernel);
}

/* No image is read, so that nothing but what holds for every kernel is known. */
CUresult CUDAAPI cuFuncGetAttribute(int *value, CUfunction_attribute attribute, CUfunction function) {
  const struct kernel *kernel;
  CUresult result = enter_function(function, value, &kernel);
  if (result != CUDA_SUCCESS)
    return result;
  switch (attribute) {
  case CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK:
    *value = 1024;
    break;
  case CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES:
  case CU_FUNC_ATTRIBUTE_CONST_SIZE_BYTES:
  case CU_FUNC_ATTRIBUTE_LOCAL_SIZE_BYTES:
    *value = 0;
    break;
  default:
    result = CUDA_ERROR_NOT_SUPPORTED;
  }
  return driver_leave(result);
}

CUresult CUDAAPI cuFuncSetAttribute(CUfunction function, CUfunction_attribute attribute, int value) {
  const struct kernel *kernel;
  FORWARD_IF_ERROR(enter_function(function, &attribute, &kernel));
  (void)value;
  return driver_leave(CUDA_SUCCESS);
}

CUresult CUDAAPI cuFuncLoad(CUfunction function) {
  FORWARD_IF_ERROR(driver_enter());
  return driver_leave(kernel_find(function) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_HANDLE);
}

/* No image is read: threads and shared memory alone bound it, not registers. */
CUresult CUDAAPI cuOccupancyMaxActiveBlocksPerMultiprocessor(int *blocks, CUfunction function, int block_threads,
                                                             size_t shared_bytes) {
  const struct kernel *kernel;
  FORWARD_IF_ERROR(enter_function(function, blocks, &kernel));
  if (block_threads < 1 || block_threads > MAX_THREADS_PER_BLOCK)
    return driver_leave(CUDA_ERROR_INVALID_VALUE);
  uint64_t by_threads = MAX_THREADS_PER_MULTIPROCESSOR / round_up((uint64_t)block_threads, 32);
  uint64_t by_memory = (MAX_SHARED_BYTES + KIB) / (shared_bytes + KIB);
  uint64_t most = by_threads < by_memory ? by_threads : by_memory;
  *blocks = (int)(most < MAX_BLOCKS_PER_MULTIPROCESSOR ? most : MAX_BLOCKS_PER_MULTIPROCESSOR);
  return driver_leave(CUDA_SUCCESS);
}
