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

static CUresult enter_primary(CUdevice ordinal, struct context **context) {
  unsigned device;
  CUresult result = driver_enter();
  if (result != CUDA_SUCCESS)
    return result;
  if (!visible_device(ordinal, &device))
    return driver_leave(CUDA_ERROR_INVALID_DEVICE);
  *context = context_primary(device);
  return *context ? CUDA_SUCCESS : driver_leave(CUDA_ERROR_OUT_OF_MEMORY);
}

CUresult CUDAAPI cuDevicePrimaryCtxRetain(CUcontext *handle, CUdevice device) {
  struct context *context;
  CUresult result = enter_primary(device, &context);
  if (result != CUDA_SUCCESS)
    return result;
  if (!handle)
    return driver_leave(CUDA_ERROR_INVALID_VALUE);
  if (!context->active)
    result = capture_check_unsafe_call();
  if (!context->active && result == CUDA_SUCCESS)
    result = context_activate(context);
  if (result == CUDA_SUCCESS) {
    context->retained++;
    *handle = context->handle;
  }
  return driver_leave(result);
}

CUresult CUDAAPI cuDevicePrimaryCtxRelease_v2(CUdevice device) {
  struct context *context;
  CUresult result = enter_primary(device, &context);
  if (result != CUDA_SUCCESS)
    return result;
  if (context->retained == 0)
    return driver_leave(CUDA_ERROR_INVALID_CONTEXT);
  if (--context->retained == 0 && context->active)
    context_deactivate(context);
  return driver_leave(CUDA_SUCCESS);
}

CUresult CUDAAPI cuDevicePrimaryCtxReset_v2(CUdevice device) {
  struct context *context;
  CUresult result = enter_primary(device, &context);
  if (result != CUDA_SUCCESS)
    return result;
  if (context->active)
    context_deactivate(context);
  context->retained = 0;
  return driver_leave(CUDA_SUCCESS);
}

CUresult CUDAAPI cuDevicePrimaryCtxSetFlags_v2(CUdevice device, unsigned int flags) {
  struct context *context;
  CUresult result = enter_primary(device, &context);
  if (result != CUDA_SUCCESS)
    return result;
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
  CUresult result = enter_primary(device, &context);
  if (result != CUDA_SUCCESS)
    return result;
  if (context->active && flags != context->flags)
    return driver_leave(CUDA_ERROR_PRIMARY_CONTEXT_ACTIVE);
  context->flags = flags;
  return driver_leave(CUDA_SUCCESS);
}

CUresult CUDAAPI cuDevicePrimaryCtxGetState(CUdevice device, unsigned int *flags, int *active) {
  struct context *context;
  CUresult result = enter_primary(device, &context);
  if (result != CUDA_SUCCESS)
    return result;
  if (!flags || !active)
    return driver_leave(CUDA_ERROR_INVALID_VALUE);
  *flags = context->flags;
  *active = context->active;
  return driver_leave(CUDA_SUCCESS);
}
