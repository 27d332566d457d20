/* The handles of devices and cards. */
#pragma once

#include "nvml_api.h"

/* nvml_ready(), and finds the device behind a handle. A card in MIG mode is none: "not supported". */
nvmlReturn_t nvml_device(nvmlDevice_t handle, unsigned *device);

nvmlDevice_t nvml_handle(unsigned device);

/* A card that is no device itself, since it is in MIG mode, has a handle of its own. The caller knows that NVML is
 * ready. */
nvmlDevice_t nvml_card_handle(unsigned card);
bool nvml_is_parent(nvmlDevice_t handle, unsigned *card);
