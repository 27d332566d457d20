/* A device's memory as programs see it, in CUDA and in NVML alike: a device of the limit's size. */
#pragma once

#include "device/devices.h"

struct memory_view {
  uint64_t total_bytes;
  uint64_t free_bytes;
  uint64_t used_bytes; /* by the container */
};

/* The driver's own figures of the device, narrowed to what the container may have, or widened by what the host serves.
 */
struct memory_view memory_view(struct device *device, uint64_t driver_total_bytes, uint64_t driver_free_bytes);
uint64_t memory_view_total(struct limits limits, uint64_t driver_total_bytes);
