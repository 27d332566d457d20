/* The devices that CUDA_VISIBLE_DEVICES leaves, in its order; its indexes are those of CUDA_DEVICE_ORDER. */
#pragma once

#include "config.h"
#include "cuda_api.h"

/* Reads the variable; returns how many devices there are. */
unsigned visible_find(void);
unsigned visible_count(void);

/* The configured device behind an ordinal; false when there is none. */
bool visible_device(CUdevice ordinal, unsigned *device);

/* The ordinal of a configured device that is visible. */
CUdevice visible_ordinal(unsigned device);
