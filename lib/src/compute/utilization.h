/*
 * How busy a container keeps a GPU, in percent of what it may have of it: a container that makes full use of --sm 50
 * shows 100 %, as one that makes full use of --mem 2g shows 2 of 2 GiB. That is the GPU that it is shown. What it takes
 * of the whole GPU `vgpurun smi` shows.
 */
#ifndef VGPU_UTILIZATION_H
#define VGPU_UTILIZATION_H

#include "abi.h"

/* The GPU time charged in the last second, of the time that a limit leaves. */
unsigned utilization_measured(const struct vgpu_device_shared *device, int64_t now_ns, uint32_t limit_percent);

/* A share of the whole GPU, of what a limit leaves of it. */
unsigned utilization_of_limit(unsigned percent, uint32_t limit_percent);

#endif
