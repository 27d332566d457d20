/* The functions of NVML that are caught, as the program enters them. */
#include "nvml/view.h"
#include "cuda/memory_info.h"
#include "device/process.h"
#include "hook/hooks.h"
#include "memory/ledger_totals.h"

#define ENTRY(name, parameters, arguments)                                                                             \
  HOOK nvmlReturn_t entry_##name parameters {                                                                          \
    return KEEPING_ERRNO(name arguments);                                                                              \
  }
#define ENTRY_2(name, A, B) ENTRY(name, (A a, B b), (a, b))
#define ENTRY_3(name, A, B, C) ENTRY(name, (A a, B b, C c), (a, b, c))
#define ENTRY_4(name, A, B, C, D) ENTRY(name, (A a, B b, C c, D d), (a, b, c, d))
#define ENTRY_6(name, A, B, C, D, E, F) ENTRY(name, (A a, B b, C c, D d, E e, F f), (a, b, c, d, e, f))

ENTRY_2(nvmlDeviceGetMemoryInfo, nvmlDevice_t, nvmlMemory_t *)
ENTRY_2(nvmlDeviceGetMemoryInfo_v2, nvmlDevice_t, nvmlMemory_v2_t *)
ENTRY_3(nvmlDeviceGetComputeRunningProcesses, nvmlDevice_t, unsigned *, nvmlProcessInfo_v1_t *)
ENTRY_3(nvmlDeviceGetComputeRunningProcesses_v2, nvmlDevice_t, unsigned *, nvmlProcessInfo_v2_t *)
ENTRY_3(nvmlDeviceGetComputeRunningProcesses_v3, nvmlDevice_t, unsigned *, nvmlProcessInfo_t *)
ENTRY_3(nvmlDeviceGetGraphicsRunningProcesses, nvmlDevice_t, unsigned *, nvmlProcessInfo_v1_t *)
ENTRY_3(nvmlDeviceGetGraphicsRunningProcesses_v2, nvmlDevice_t, unsigned *, nvmlProcessInfo_v2_t *)
ENTRY_3(nvmlDeviceGetGraphicsRunningProcesses_v3, nvmlDevice_t, unsigned *, nvmlProcessInfo_t *)
ENTRY_3(nvmlDeviceGetMPSComputeRunningProcesses, nvmlDevice_t, unsigned *, nvmlProcessInfo_v1_t *)
ENTRY_3(nvmlDeviceGetMPSComputeRunningProcesses_v2, nvmlDevice_t, unsigned *, nvmlProcessInfo_v2_t *)
ENTRY_3(nvmlDeviceGetMPSComputeRunningProcesses_v3, nvmlDevice_t, unsigned *, nvmlProcessInfo_t *)
ENTRY_2(nvmlDeviceGetRunningProcessDetailList, nvmlDevice_t, nvmlProcessDetailList_t *)
ENTRY_3(nvmlDeviceGetAccountingPids, nvmlDevice_t, unsigned *, unsigned *)
ENTRY_3(nvmlDeviceGetAccountingStats, nvmlDevice_t, unsigned, nvmlAccountingStats_t *)
ENTRY_2(nvmlDeviceGetUtilizationRates, nvmlDevice_t, nvmlUtilization_t *)
ENTRY_4(nvmlDeviceGetProcessUtilization, nvmlDevice_t, nvmlProcessUtilizationSample_t *, unsigned *, unsigned long long)
ENTRY_2(nvmlDeviceGetProcessesUtilizationInfo, nvmlDevice_t, nvmlProcessesUtilizationInfo_t *)
ENTRY_6(nvmlDeviceGetSamples, nvmlDevice_t, nvmlSamplingType_t, unsigned long long, nvmlValueType_t *, unsigned *,
        nvmlSample_t *)

/* In MIG mode the instances are the devices, and nothing can run on the GPU itself. */
static bool is_cut_up(nvmlDevice_t handle) {
  unsigned current = NVML_DEVICE_MIG_DISABLE, pending;
  return real.nvmlDeviceGetMigMode(handle, &current, &pending) == NVML_SUCCESS && current == NVML_DEVICE_MIG_ENABLE;
}

struct device *nvml_view_device(nvmlDevice_t handle) {
  return process_shows_limits() && !is_cut_up(handle) ? device_of_nvml(handle) : NULL;
}

bool nvml_view_has_process(unsigned pid) {
  return ledger_has_process(process_ledger_view(), pid);
}

/* ---- memory; BAR1 is an address window, not memory, and stays the driver's --------------------------------------- */

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
