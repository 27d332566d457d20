/*
 * Figures for display, in vgpu_device_shared: how busy the GPU was in each of the last seconds.
 *
 * A reader takes the entry of second s (of CLOCK_MONOTONIC) only where its upper half is s; any other number means that
 * nothing was charged in s. It cuts the lower half to a full second, and leaves out the second that has not ended: GPU
 * time is charged when it is over.
 */
#pragma once

#include "abi.h"

/* Adds the GPU time from start_ns to end_ns to the seconds that it lay in. */
void busy_history_add(struct vgpu_device_shared *device, int64_t start_ns, int64_t end_ns);

/*
 * How busy a container keeps a GPU, in percent of what it may have of it: a container that makes full use of --sm 50
 * shows 100 %, as one that makes full use of --mem 2g shows 2 of 2 GiB. That is the GPU that it is shown. Its use
 * of the whole GPU `vgpurun smi` shows.
 */

/* The GPU time charged in the last second, of the time that a limit leaves. */
unsigned utilization_measured(const struct vgpu_device_shared *device, int64_t now_ns, uint32_t limit_percent);

/* A share of the whole GPU, of what a limit leaves of it. */
unsigned utilization_of_limit(unsigned percent, uint32_t limit_percent);
