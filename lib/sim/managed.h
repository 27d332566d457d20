/* Managed memory: on the device from when the device touches it. */
#ifndef SIM_MANAGED_H
#define SIM_MANAGED_H

#include "regions.h"

void managed_touch(uintptr_t address, unsigned device);

#endif
