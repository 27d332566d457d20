/* Allocations of the device's memory. */
#ifndef VGPU_CUDA_MEMORY_H
#define VGPU_CUDA_MEMORY_H

#include "cuda/reserve.h"
#include "device/devices.h"
#include "device/process.h"

/* An allocation that the device's share has no room for: served by the host, or refused. */
CUresult memory_allocate_on_host(const struct current *current, CUdeviceptr *pointer, size_t size, unsigned flags);

/* The context is gone, and its allocations with it. */
void memory_forget_context(struct device *device, CUcontext context);

#endif
