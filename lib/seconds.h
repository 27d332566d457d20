/*
 * How busy the GPU was in each of the last seconds: the ring in vgpu_device_shared.
 *
 * A reader takes an entry for second s (of CLOCK_MONOTONIC) only where its upper half is s; any other number means that
 * nothing was charged in s. It cuts the lower half to a full second, and leaves out the second that has not ended: GPU
 * time is charged when it is over, so that one still grows.
 */
#ifndef VGPU_SECONDS_H
#define VGPU_SECONDS_H

#include "abi.h"

/* Adds the GPU time from start_ns to end_ns to the seconds that it lay in. */
void seconds_add(struct vgpu_device_shared *device, int64_t start_ns, int64_t end_ns);

#endif
