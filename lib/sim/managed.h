/* Managed memory: on the device from when the device touches it. */
#pragma once

#include "regions.h"

void managed_touch(uintptr_t address, unsigned device);
