/* While a thread captures a stream in global mode, most questions to the driver are an error and end the capture. The
 * library asks its own in relaxed mode and leaves the thread as it was. */
#ifndef VGPU_CAPTURE_H
#define VGPU_CAPTURE_H

#include "hook/hooks.h"

static inline CUstreamCaptureMode capture_relax(void) {
  CUstreamCaptureMode mode = CU_STREAM_CAPTURE_MODE_RELAXED;
  return real.cuThreadExchangeStreamCaptureMode(&mode) == CUDA_SUCCESS ? mode : CU_STREAM_CAPTURE_MODE_RELAXED;
}

static inline void capture_restore(CUstreamCaptureMode mode) {
  real.cuThreadExchangeStreamCaptureMode(&mode);
}

/* Does the stream capture, as far as it says? Then what is asked of it happens when its graph is launched. */
static inline bool capture_is_active(CUstream stream) {
  CUstreamCaptureStatus status;
  return real.cuStreamIsCapturing(stream, &status) != CUDA_SUCCESS || status != CU_STREAM_CAPTURE_STATUS_NONE;
}

#endif
