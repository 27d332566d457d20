/* A device as NVML, and so nvidia-smi, shows it to a limited program: the container's share of it, and its processes.
 */
#pragma once

#include "device/devices.h"

/* The device behind a handle where this process is limited; NULL where the driver's own answer stands. */
struct device *nvml_view_device(nvmlDevice_t handle);

/* Is this a process of the container that uses, or has used, the GPU? */
bool nvml_view_has_process(unsigned pid);
