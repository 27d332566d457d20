/*
 * Past the device's share: memory of the host that serves in the place of the device's. It is managed memory that is
 * advised to stay on the host, where the GPU reads and writes it. So every copy, kernel and cuMemFree takes it for what
 * the program asked for, and none of it comes to the device.
 */
#pragma once

#include "device/devices.h"

/* Makes it, counted, or refuses and explains; `flags` are those of cuMemAllocManaged. */
CUresult host_memory_take(const struct current *current, size_t size, unsigned flags, CUdeviceptr *pointer,
                          uint64_t *bytes);

/* Counts it no longer. */
void host_memory_release(const struct device *device, uint64_t bytes);

/* For cuMemCreate: bytes are counted, and the properties changed into those of the host. False when there is no room
 * for them either. */
bool host_memory_reserve_physical(const struct device *device, uint64_t bytes, CUmemAllocationProp *properties);

/* Frees it in the order of a stream, without waiting for it: the driver can do that with memory of pools only. */
struct host_memory {
  CUdeviceptr pointer;
  uint64_t bytes;
  struct device *device;
  CUcontext context;
};
CUresult host_memory_free_in_order(const struct host_memory *memory, CUstream stream);

/* Frees what has been waited for. */
void host_memory_collect(void);

/* Forgets what has not been freed yet of a context that is gone. */
void host_memory_forget_context(CUcontext context);
