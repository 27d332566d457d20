/* The meter's driver, on CUDA: markers are timing events, kept for use again. */
#ifndef VGPU_MARKERS_H
#define VGPU_MARKERS_H

#include "compute/meter.h"
#include "hook/hooks.h"

extern const struct meter_driver markers_driver;

/* The context is being destroyed: its markers must not be touched any more. */
void markers_forget_context(CUcontext context);

#endif
