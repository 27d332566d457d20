/* What NVML, and so nvidia-smi, shows of a device: a GPU of the limit's size, used as far as the container uses it. */
#include "devices.h"
#include "process.h"

struct view {
  unsigned long long total, free, used;
};

/* False when the device's memory is not limited: then the driver's own figures stand. */
static bool view_of(nvmlDevice_t handle, unsigned long long driver_total, struct view *view) {
  if (!process_is_limited())
    return false;
  struct device *device = device_of_nvml(handle);
  if (device == NULL)
    return false;
  uint64_t limit_bytes = device_limits(device).memory_bytes;
  if (limit_bytes >= driver_total)
    return false;
  uint64_t used_bytes = device_used_bytes(device);
  view->total = limit_bytes;
  view->used = used_bytes < limit_bytes ? used_bytes : limit_bytes;
  view->free = limit_bytes - view->used;
  return true;
}

HOOK nvmlReturn_t nvmlDeviceGetMemoryInfo(nvmlDevice_t handle, nvmlMemory_t *memory) {
  hooks_load_nvml();
  nvmlReturn_t result = real.nvmlDeviceGetMemoryInfo(handle, memory);
  struct view view;
  if (result == NVML_SUCCESS && memory != NULL && view_of(handle, memory->total, &view)) {
    memory->total = view.total;
    memory->free = view.free;
    memory->used = view.used;
  }
  return result;
}

HOOK nvmlReturn_t nvmlDeviceGetMemoryInfo_v2(nvmlDevice_t handle, nvmlMemory_v2_t *memory) {
  hooks_load_nvml();
  nvmlReturn_t result = real.nvmlDeviceGetMemoryInfo_v2(handle, memory);
  struct view view;
  if (result == NVML_SUCCESS && memory != NULL && view_of(handle, memory->total, &view)) {
    memory->total = view.total;
    memory->free = view.free;
    memory->used = view.used;
    memory->reserved = 0; /* the driver's own share is not the container's to see */
  }
  return result;
}
