/* The memory of a device as NVML shows it. BAR1 is an address window, not memory, and stays the driver's. */
#include "cuda/memory_view.h"
#include "nvml/view.h"

nvmlReturn_t nvmlDeviceGetMemoryInfo(nvmlDevice_t handle, nvmlMemory_t *memory) {
  hooks_load_nvml();
  nvmlReturn_t result = real.nvmlDeviceGetMemoryInfo(handle, memory);
  struct device *device = result == NVML_SUCCESS && memory != NULL ? nvml_view_device(handle) : NULL;
  if (device == NULL || !device_limits_memory(device))
    return result;
  struct memory_view view = memory_view(device, memory->total, memory->free);
  memory->total = view.total_bytes;
  memory->free = view.free_bytes;
  memory->used = view.used_bytes;
  return result;
}

nvmlReturn_t nvmlDeviceGetMemoryInfo_v2(nvmlDevice_t handle, nvmlMemory_v2_t *memory) {
  hooks_load_nvml();
  nvmlReturn_t result = real.nvmlDeviceGetMemoryInfo_v2(handle, memory);
  struct device *device = result == NVML_SUCCESS && memory != NULL ? nvml_view_device(handle) : NULL;
  if (device == NULL || !device_limits_memory(device))
    return result;
  struct memory_view view = memory_view(device, memory->total, memory->free);
  memory->total = view.total_bytes;
  memory->free = view.free_bytes;
  memory->used = view.used_bytes;
  memory->reserved = 0; /* the driver's own share is not the container's to see */
  return result;
}
