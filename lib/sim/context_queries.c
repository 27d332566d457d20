/* Queries of a context, and waits for it. */
#include "capture.h"
#include "contexts.h"
#include "streams.h"
#include "synchronize.h"
#include "visible.h"

static CUresult enter(CUcontext handle, const void *output, struct context **context) {
  FORWARD_IF_ERROR(driver_enter());
  CUresult result = output ? context_find(handle, context) : CUDA_ERROR_INVALID_VALUE;
  return result == CUDA_SUCCESS ? CUDA_SUCCESS : driver_leave(result);
}

static CUresult get_device(CUdevice *device, CUcontext handle) {
  struct context *context;
  FORWARD_IF_ERROR(enter(handle, device, &context));
  *device = visible_ordinal(context->device);
  return driver_leave(CUDA_SUCCESS);
}

CUresult CUDAAPI cuCtxGetDevice(CUdevice *device) {
  return get_device(device, NULL);
}

CUresult CUDAAPI cuCtxGetId(CUcontext handle, unsigned long long *id) {
  struct context *context;
  FORWARD_IF_ERROR(enter(handle, id, &context));
  *id = context->id;
  return driver_leave(CUDA_SUCCESS);
}

CUresult CUDAAPI cuCtxGetFlags(unsigned int *flags) {
  struct context *context;
  FORWARD_IF_ERROR(context_enter(&context));
  if (!flags)
    return driver_leave(CUDA_ERROR_INVALID_VALUE);
  *flags = context->flags;
  return driver_leave(CUDA_SUCCESS);
}

CUresult CUDAAPI cuCtxGetApiVersion(CUcontext handle, unsigned int *version) {
  struct context *context;
  FORWARD_IF_ERROR(enter(handle, version, &context));
  *version = 3020;
  return driver_leave(CUDA_SUCCESS);
}

CUresult CUDAAPI cuCtxGetStreamPriorityRange(int *least, int *greatest) {
  struct context *context;
  FORWARD_IF_ERROR(context_enter(&context));
  if (least)
    *least = STREAM_LEAST_PRIORITY;
  if (greatest)
    *greatest = STREAM_GREATEST_PRIORITY;
  return driver_leave(CUDA_SUCCESS);
}

static CUresult synchronize(CUcontext handle) {
  struct context *context;
  FORWARD_IF_ERROR(driver_enter());
  CUresult result = context_find(handle, &context);
  if (result == CUDA_SUCCESS)
    result = capture_check_context_wait(context);
  if (result != CUDA_SUCCESS)
    return driver_leave(result);
  return synchronize_and_leave(streams_latest_tail(context));
}

CUresult CUDAAPI cuCtxSynchronize(void) {
  return synchronize(NULL);
}

#if CUDA_VERSION >= 13000
CUresult CUDAAPI cuCtxSynchronize_v2(CUcontext handle) {
  return synchronize(handle);
}

CUresult CUDAAPI cuCtxGetDevice_v2(CUdevice *device, CUcontext handle) {
  return get_device(device, handle);
}
#endif
