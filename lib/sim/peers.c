/* Peer access: simulated devices have none. */
#include "contexts.h"
#include "visible.h"

CUresult CUDAAPI cuDeviceCanAccessPeer(int *can_access, CUdevice ordinal, CUdevice peer_ordinal) {
  unsigned device, peer;
  FORWARD_IF_ERROR(driver_enter());
  if (!can_access)
    return driver_leave(CUDA_ERROR_INVALID_VALUE);
  if (!visible_device(ordinal, &device) || !visible_device(peer_ordinal, &peer))
    return driver_leave(CUDA_ERROR_INVALID_DEVICE);
  *can_access = 0;
  return driver_leave(CUDA_SUCCESS);
}

CUresult CUDAAPI cuCtxEnablePeerAccess(CUcontext peer, unsigned int flags) {
  struct context *context, *other;
  FORWARD_IF_ERROR(context_enter(&context));
  if (flags != 0)
    return driver_leave(CUDA_ERROR_INVALID_VALUE);
  if (!peer || context_find(peer, &other) != CUDA_SUCCESS)
    return driver_leave(CUDA_ERROR_INVALID_CONTEXT);
  return driver_leave(CUDA_ERROR_PEER_ACCESS_UNSUPPORTED);
}
