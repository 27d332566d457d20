/* Allocations of the device's memory. */
#pragma once

#include "cuda/reserve.h"
#include "device/devices.h"
#include "device/process.h"

/* Serves from the host an allocation that the device's share has no room for, or refuses it. */
CUresult memory_allocate_on_host(const struct current *current, CUdeviceptr *pointer, size_t size, unsigned flags);

/* Forgets the allocations of a context that is gone. */
void memory_forget_context(struct device *device, CUcontext context);
