/* Launches and the streams that they go to. */
#ifndef VGPU_CUDA_LAUNCH_H
#define VGPU_CUDA_LAUNCH_H

#include "hooks.h"
#include "meter.h"

/* Before a stream or a context is destroyed. */
void launch_forget_stream(CUstream stream);
void launch_forget_context(CUcontext context);

/* Gives back a reference to a primary context, or resets it: only afterwards it is known whether it still exists. */
CUresult launch_release_primary(CUdevice ordinal, CUresult (*release)(CUdevice));

/* In a forked child. */
void launch_forget(void);

/* Stream NULL means the legacy stream or, in a _ptsz call, the thread's own. */
static inline CUstream legacy(CUstream stream) {
  return stream != NULL ? stream : CU_STREAM_LEGACY;
}
static inline CUstream per_thread(CUstream stream) {
  return stream != NULL ? stream : CU_STREAM_PER_THREAD;
}

#endif
