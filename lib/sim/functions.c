/* Queries of a kernel. */
#include "modules.h"

static CUresult enter_function(CUfunction handle, const void *output, const struct kernel **kernel) {
  CUresult result = driver_enter();
  if (result != CUDA_SUCCESS)
    return result;
  if (!output)
    return driver_leave(CUDA_ERROR_INVALID_VALUE);
  *kernel = kernel_find(handle);
  return *kernel ? CUDA_SUCCESS : driver_leave(CUDA_ERROR_INVALID_HANDLE);
}

CUresult CUDAAPI cuFuncGetName(const char **name, CUfunction function) {
  const struct kernel *kernel;
  CUresult result = enter_function(function, name, &kernel);
  if (result != CUDA_SUCCESS)
    return result;
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
  CUresult result = enter_function(function, &attribute, &kernel);
  if (result != CUDA_SUCCESS)
    return result;
  (void)value;
  return driver_leave(CUDA_SUCCESS);
}

CUresult CUDAAPI cuFuncLoad(CUfunction function) {
  CUresult result = driver_enter();
  if (result != CUDA_SUCCESS)
    return result;
  return driver_leave(kernel_find(function) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_HANDLE);
}
