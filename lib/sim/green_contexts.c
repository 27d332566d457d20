/* Green contexts: names of the primary context, which each retains. No SMs are set apart for them. */
#include "primary.h"
#include "streams.h"

/* driver_enter(), and the primary context that a handle means. */
static CUresult enter(CUgreenCtx handle, struct context **primary) {
  FORWARD_IF_ERROR(driver_enter());
  *primary = handle_object(HANDLE_GREEN_CONTEXT, handle);
  if (!*primary)
    return driver_leave(CUDA_ERROR_INVALID_CONTEXT);
  return (*primary)->active ? CUDA_SUCCESS : driver_leave(CUDA_ERROR_CONTEXT_IS_DESTROYED);
}

CUresult CUDAAPI cuGreenCtxCreate(CUgreenCtx *handle, CUdevResourceDesc description, CUdevice ordinal,
                                  unsigned int flags) {
  (void)description;
  struct context *primary;
  FORWARD_IF_ERROR(primary_enter(ordinal, &primary));
  if (!handle || flags != CU_GREEN_CTX_DEFAULT_STREAM)
    return driver_leave(CUDA_ERROR_INVALID_VALUE);
  CUresult result = primary_retain(primary);
  if (result != CUDA_SUCCESS)
    return driver_leave(result);
  CUgreenCtx made = handle_new(HANDLE_GREEN_CONTEXT, primary);
  if (!made) {
    primary_release(primary);
    return driver_leave(CUDA_ERROR_OUT_OF_MEMORY);
  }
  *handle = made;
  return driver_leave(CUDA_SUCCESS);
}

CUresult CUDAAPI cuGreenCtxDestroy(CUgreenCtx handle) {
  struct context *primary;
  FORWARD_IF_ERROR(enter(handle, &primary));
  handle_delete(handle);
  return driver_leave(primary_release(primary));
}

CUresult CUDAAPI cuCtxFromGreenCtx(CUcontext *context, CUgreenCtx handle) {
  struct context *primary;
  FORWARD_IF_ERROR(enter(handle, &primary));
  if (!context)
    return driver_leave(CUDA_ERROR_INVALID_VALUE);
  *context = primary->handle;
  return driver_leave(CUDA_SUCCESS);
}

CUresult CUDAAPI cuGreenCtxStreamCreate(CUstream *handle, CUgreenCtx context, unsigned int flags, int priority) {
  struct context *primary;
  FORWARD_IF_ERROR(enter(context, &primary));
  if (!handle || flags != CU_STREAM_NON_BLOCKING)
    return driver_leave(CUDA_ERROR_INVALID_VALUE);
  struct stream *stream = stream_new(primary, flags, priority);
  if (!stream)
    return driver_leave(CUDA_ERROR_OUT_OF_MEMORY);
  *handle = stream->handle;
  return driver_leave(CUDA_SUCCESS);
}
