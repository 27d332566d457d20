/* nvml.h with the old versions of its prototypes visible, and what the simulated NVML's files share. */
#ifndef SIM_NVML_API_H
#define SIM_NVML_API_H

/* Protected as in cuda_api.h. */
#define NVML_NO_UNVERSIONED_FUNC_DEFS
#pragma GCC visibility push(protected)
#include <nvml.h>
#pragma GCC visibility pop

#include "config.h"

/* NVML_SUCCESS once the library is initialised. */
nvmlReturn_t nvml_ready(void);

/* The same, and finds the device behind a handle. A card in MIG mode is none: "not supported". */
nvmlReturn_t nvml_device(nvmlDevice_t handle, unsigned *device);

/* Whether the device has fallen off the bus (nvml_events.c). */
bool nvml_is_lost(unsigned device);

nvmlDevice_t nvml_handle(unsigned device);

/* A card that is no device itself, since it is in MIG mode, has a handle of its own. The caller knows that NVML is
 * ready. */
nvmlDevice_t nvml_card_handle(unsigned card);
bool nvml_is_parent(nvmlDevice_t handle, unsigned *card);

#endif
