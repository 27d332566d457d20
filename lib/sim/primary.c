#include "primary.h"

#include "capture.h"
#include "context_lives.h"
#include "visible.h"

static struct context *primaries[SIM_MAX_DEVICES];

struct context *context_primary(unsigned device) {
  if (!primaries[device])
    primaries[device] = context_new(device, 0);
  return primaries[device];
}

CUresult primary_enter(CUdevice ordinal, struct context **context) {
  unsigned device;
  FORWARD_IF_ERROR(driver_enter());
  if (!visible_device(ordinal, &device))
    return driver_leave(CUDA_ERROR_INVALID_DEVICE);
  *context = context_primary(device);
  return *context ? CUDA_SUCCESS : driver_leave(CUDA_ERROR_OUT_OF_MEMORY);
}

CUresult primary_retain(struct context *context) {
  CUresult result = context->active ? CUDA_SUCCESS : capture_check_unsafe_call();
  if (!context->active && result == CUDA_SUCCESS)
    result = context_activate(context);
  if (result == CUDA_SUCCESS)
    context->retained++;
  return result;
}

CUresult primary_release(struct context *context) {
  if (context->retained == 0)
    return CUDA_ERROR_INVALID_CONTEXT;
  if (--context->retained == 0 && context->active)
    context_deactivate(context);
  return CUDA_SUCCESS;
}

CUresult CUDAAPI cuDevicePrimaryCtxRetain(CUcontext *handle, CUdevice device) {
  struct context *context;
  FORWARD_IF_ERROR(primary_enter(device, &context));
  if (!handle)
    return driver_leave(CUDA_ERROR_INVALID_VALUE);
  CUresult result = primary_retain(context);
  if (result == CUDA_SUCCESS)
    *handle = context->handle;
  return driver_leave(result);
}

CUresult CUDAAPI cuDevicePrimaryCtxRelease_v2(CUdevice device) {
  struct context *context;
  FORWARD_IF_ERROR(primary_enter(device, &context));
  return driver_leave(primary_release(context));
}

CUresult CUDAAPI cuDevicePrimaryCtxReset_v2(CUdevice device) {
  struct context *context;
  FORWARD_IF_ERROR(primary_enter(device, &context));
  if (context->active)
    context_deactivate(context);
  context->retained = 0;
  return driver_leave(CUDA_SUCCESS);
}

CUresult CUDAAPI cuDevicePrimaryCtxSetFlags_v2(CUdevice device, unsigned int flags) {
  struct context *context;
  FORWARD_IF_ERROR(primary_enter(device, &context));
  context->flags = flags;
  return driver_leave(CUDA_SUCCESS);
}

CUresult CUDAAPI cuDevicePrimaryCtxRelease(CUdevice device) {
  return cuDevicePrimaryCtxRelease_v2(device);
}

CUresult CUDAAPI cuDevicePrimaryCtxReset(CUdevice device) {
  return cuDevicePrimaryCtxReset_v2(device);
}

/* The first version could not change the flags of a context that is in use. */
CUresult CUDAAPI cuDevicePrimaryCtxSetFlags(CUdevice device, unsigned int flags) {
  struct context *context;
  FORWARD_IF_ERROR(primary_enter(device, &context));
  if (context->active && flags != context->flags)
    return driver_leave(CUDA_ERROR_PRIMARY_CONTEXT_ACTIVE);
  context->flags = flags;
  return driver_leave(CUDA_SUCCESS);
}

CUresult CUDAAPI cuDevicePrimaryCtxGetState(CUdevice device, unsigned int *flags, int *active) {
  struct context *context;
  FORWARD_IF_ERROR(primary_enter(device, &context));
  if (!flags || !active)
    return driver_leave(CUDA_ERROR_INVALID_VALUE);
  *flags = context->flags;
  *active = context->active;
  return driver_leave(CUDA_SUCCESS);
}
