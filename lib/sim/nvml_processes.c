/* The processes that hold memory of a device. One PID namespace sees its own processes only, by its own numbers. */
#include "nvml_processes.h"

#include "cards.h"

#define NO_MIG_INSTANCE 0xFFFFFFFFu

static unsigned gpu_instance(nvmlDevice_t handle, unsigned device) {
  unsigned id;
  return is_instance(device) && nvmlDeviceGetGpuInstanceId(handle, &id) == NVML_SUCCESS ? id : NO_MIG_INSTANCE;
}

static unsigned compute_instance(nvmlDevice_t handle, unsigned device) {
  unsigned id;
  return is_instance(device) && nvmlDeviceGetComputeInstanceId(handle, &id) == NVML_SUCCESS ? id : NO_MIG_INSTANCE;
}

/* NVML has names for the modes since CUDA 13. */
enum { DETAIL_COMPUTE, DETAIL_GRAPHICS, DETAIL_MPS, DETAIL_ALL };

nvmlReturn_t nvml_list_processes(nvmlDevice_t handle, unsigned *device, unsigned *count, const void *infos,
                                 struct processes *processes) {
  nvmlReturn_t result = nvml_device(handle, device);
  if (result != NVML_SUCCESS)
    return result;
  if (!count || (*count && !infos))
    return NVML_ERROR_INVALID_ARGUMENT;
  unsigned room = *count;
  *count = processes->count = state_list_holders(*device, processes->list);
  return processes->count > room ? NVML_ERROR_INSUFFICIENT_SIZE : NVML_SUCCESS;
}

nvmlReturn_t DECLDIR nvmlDeviceGetComputeRunningProcesses_v3(nvmlDevice_t handle, unsigned int *count,
                                                             nvmlProcessInfo_t *infos) {
  unsigned device;
  struct processes processes;
  nvmlReturn_t result = nvml_list_processes(handle, &device, count, infos, &processes);
  if (result != NVML_SUCCESS)
    return result;
  for (unsigned i = 0; i < processes.count; i++)
    infos[i] = (nvmlProcessInfo_t){.pid = processes.list[i].pid,
                                   .usedGpuMemory = processes.list[i].used_bytes,
                                   .gpuInstanceId = gpu_instance(handle, device),
                                   .computeInstanceId = compute_instance(handle, device)};
  return NVML_SUCCESS;
}

nvmlReturn_t DECLDIR nvmlDeviceGetComputeRunningProcesses_v2(nvmlDevice_t device, unsigned int *count,
                                                             nvmlProcessInfo_v2_t *infos) {
  return nvmlDeviceGetComputeRunningProcesses_v3(device, count, infos);
}

nvmlReturn_t DECLDIR nvmlDeviceGetComputeRunningProcesses(nvmlDevice_t handle, unsigned int *count,
                                                          nvmlProcessInfo_v1_t *infos) {
  unsigned device;
  struct processes processes;
  nvmlReturn_t result = nvml_list_processes(handle, &device, count, infos, &processes);
  if (result != NVML_SUCCESS)
    return result;
  for (unsigned i = 0; i < processes.count; i++)
    infos[i] = (nvmlProcessInfo_v1_t){.pid = processes.list[i].pid, .usedGpuMemory = processes.list[i].used_bytes};
  return NVML_SUCCESS;
}

/* Nothing draws, and there is no MPS. */
static nvmlReturn_t list_none(nvmlDevice_t handle, unsigned *count) {
  unsigned device;
  nvmlReturn_t result = nvml_device(handle, &device);
  if (result != NVML_SUCCESS)
    return result;
  if (!count)
    return NVML_ERROR_INVALID_ARGUMENT;
  *count = 0;
  return NVML_SUCCESS;
}

#define EMPTY_LIST(name, info)                                                                                         \
  nvmlReturn_t DECLDIR name(nvmlDevice_t device, unsigned int *count, info *infos) {                                   \
    (void)infos;                                                                                                       \
    return list_none(device, count);                                                                                   \
  }

EMPTY_LIST(nvmlDeviceGetGraphicsRunningProcesses, nvmlProcessInfo_v1_t)
EMPTY_LIST(nvmlDeviceGetGraphicsRunningProcesses_v2, nvmlProcessInfo_v2_t)
EMPTY_LIST(nvmlDeviceGetGraphicsRunningProcesses_v3, nvmlProcessInfo_t)
EMPTY_LIST(nvmlDeviceGetMPSComputeRunningProcesses, nvmlProcessInfo_v1_t)
EMPTY_LIST(nvmlDeviceGetMPSComputeRunningProcesses_v2, nvmlProcessInfo_v2_t)
EMPTY_LIST(nvmlDeviceGetMPSComputeRunningProcesses_v3, nvmlProcessInfo_t)

nvmlReturn_t DECLDIR nvmlDeviceGetRunningProcessDetailList(nvmlDevice_t handle, nvmlProcessDetailList_t *details) {
  unsigned device;
  struct processes processes;
  if (details && details->version != nvmlProcessDetailList_v1)
    return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
  if (details && (details->mode == DETAIL_GRAPHICS || details->mode == DETAIL_MPS))
    return list_none(handle, &details->numProcArrayEntries);
  if (details && details->mode > DETAIL_ALL)
    return NVML_ERROR_INVALID_ARGUMENT;
  nvmlReturn_t result = nvml_list_processes(handle, &device, details ? &details->numProcArrayEntries : NULL,
                                            details ? details->procArray : NULL, &processes);
  if (result != NVML_SUCCESS)
    return result;
  for (unsigned i = 0; i < processes.count; i++)
    details->procArray[i] = (nvmlProcessDetail_v1_t){.pid = processes.list[i].pid,
                                                     .usedGpuMemory = processes.list[i].used_bytes,
                                                     .gpuInstanceId = gpu_instance(handle, device),
                                                     .computeInstanceId = compute_instance(handle, device)};
  return NVML_SUCCESS;
}

/* Accounting knows the processes that run. Ended ones are forgotten. */
nvmlReturn_t DECLDIR nvmlDeviceGetAccountingBufferSize(nvmlDevice_t handle, unsigned int *size) {
  unsigned device;
  nvmlReturn_t result = nvml_device(handle, &device);
  if (result == NVML_SUCCESS && !size)
    return NVML_ERROR_INVALID_ARGUMENT;
  if (result == NVML_SUCCESS)
    *size = STATE_MAX_PROCESSES;
  return result;
}

nvmlReturn_t DECLDIR nvmlDeviceGetAccountingPids(nvmlDevice_t handle, unsigned int *count, unsigned int *pids) {
  unsigned device;
  struct processes processes;
  nvmlReturn_t result = nvml_list_processes(handle, &device, count, pids, &processes);
  for (unsigned i = 0; result == NVML_SUCCESS && i < processes.count; i++)
    pids[i] = processes.list[i].pid;
  return result;
}

nvmlReturn_t DECLDIR nvmlDeviceGetAccountingStats(nvmlDevice_t handle, unsigned int pid, nvmlAccountingStats_t *stats) {
  unsigned device, room = 0;
  struct processes processes;
  nvmlReturn_t result = nvml_list_processes(handle, &device, &room, NULL, &processes);
  if (result != NVML_SUCCESS && result != NVML_ERROR_INSUFFICIENT_SIZE)
    return result;
  if (!stats)
    return NVML_ERROR_INVALID_ARGUMENT;
  for (unsigned i = 0; i < processes.count; i++) {
    if (processes.list[i].pid != pid)
      continue;
    const unsigned unknown = (unsigned)NVML_VALUE_NOT_AVAILABLE;
    *stats = (nvmlAccountingStats_t){.gpuUtilization = unknown,
                                     .memoryUtilization = unknown,
                                     .maxMemoryUsage = processes.list[i].used_bytes, /* until now nobody kept it */
                                     .isRunning = 1};
    return NVML_SUCCESS;
  }
  return NVML_ERROR_NOT_FOUND;
}
