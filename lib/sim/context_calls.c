/* The calls that make and destroy contexts. */
#include "capture.h"
#include "context_lives.h"
#include "primary.h"
#include "streams.h"
#include "synchronize.h"
#include "visible.h"

#define ALL_FLAGS (CU_CTX_SCHED_MASK | CU_CTX_MAP_HOST | CU_CTX_LMEM_RESIZE_TO_MAX | CU_CTX_SYNC_MEMOPS)

static CUresult create(CUcontext *handle, unsigned flags, CUdevice ordinal) {
  unsigned device;
  FORWARD_IF_ERROR(driver_enter());
  if (!handle || (flags & ~(unsigned)ALL_FLAGS) || (flags & CU_CTX_SCHED_MASK) == CU_CTX_SCHED_MASK)
    return driver_leave(CUDA_ERROR_INVALID_VALUE);
  if (!visible_device(ordinal, &device))
    return driver_leave(CUDA_ERROR_INVALID_DEVICE);
  CUresult result = capture_check_unsafe_call();
  if (result != CUDA_SUCCESS)
    return driver_leave(result);
  struct context *context = context_new(device, flags);
  if (!context)
    return driver_leave(CUDA_ERROR_OUT_OF_MEMORY);
  result = context_activate(context);
  if (result == CUDA_SUCCESS)
    result = context_push(context->handle);
  if (result == CUDA_SUCCESS)
    *handle = context->handle;
  else if (context->active)
    context_deactivate(context);
  if (result != CUDA_SUCCESS)
    context_delete(context);
  return driver_leave(result);
}

CUresult CUDAAPI cuCtxCreate(CUcontext *handle, unsigned int flags, CUdevice device) {
  return create(handle, flags, device);
}

CUresult CUDAAPI cuCtxCreate_v2(CUcontext *handle, unsigned int flags, CUdevice device) {
  return create(handle, flags, device);
}

CUresult CUDAAPI cuCtxCreate_v3(CUcontext *handle, CUexecAffinityParam *affinity, int affinity_count,
                                unsigned int flags, CUdevice device) {
  if (driver_check_ready() != CUDA_SUCCESS)
    return CUDA_ERROR_NOT_INITIALIZED;
  if (affinity || affinity_count)
    return CUDA_ERROR_UNSUPPORTED_EXEC_AFFINITY;
  return create(handle, flags, device);
}

CUresult CUDAAPI cuCtxCreate_v4(CUcontext *handle, CUctxCreateParams *parameters, unsigned int flags, CUdevice device) {
  if (driver_check_ready() != CUDA_SUCCESS)
    return CUDA_ERROR_NOT_INITIALIZED;
  if (parameters && (parameters->execAffinityParams || parameters->numExecAffinityParams))
    return CUDA_ERROR_UNSUPPORTED_EXEC_AFFINITY;
  if (parameters && parameters->cigParams)
    return CUDA_ERROR_NOT_SUPPORTED;
  return create(handle, flags, device);
}

/* Queued work ends first: by the CUDA C++ Programming Guide this flushes the buffer of printf(). */
CUresult CUDAAPI cuCtxDestroy_v2(CUcontext handle) {
  FORWARD_IF_ERROR(driver_enter());
  struct context *context = handle_object(HANDLE_CONTEXT, handle);
  if (!context || context == context_primary(context->device))
    return driver_leave(CUDA_ERROR_INVALID_CONTEXT);
  CUresult result = capture_check_unsafe_call();
  if (result != CUDA_SUCCESS)
    return driver_leave(result);
  context_pop_if(handle);
  result = synchronize_and_leave(streams_latest_tail(context));
  if (result == CUDA_SUCCESS)
    result = driver_enter();
  if (result != CUDA_SUCCESS)
    return result;
  context = handle_object(HANDLE_CONTEXT, handle);
  if (!context) /* another thread has been faster */
    return driver_leave(CUDA_ERROR_INVALID_CONTEXT);
  context_deactivate(context);
  context_delete(context);
  return driver_leave(CUDA_SUCCESS);
}

CUresult CUDAAPI cuCtxDestroy(CUcontext handle) {
  return cuCtxDestroy_v2(handle);
}
