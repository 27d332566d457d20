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

static void keep(struct processes *processes, enum processes_kind kind) {
  unsigned kept = 0;
  for (unsigned i = 0; i < processes->count; i++)
    if (kind != PROCESSES_MPS || processes->list[i].is_client)
      processes->list[kept++] = processes->list[i];
  processes->count = kept;
}

nvmlReturn_t nvml_list_processes(nvmlDevice_t handle, enum processes_kind kind, unsigned *device, unsigned *count,
                                 const void *infos, struct processes *processes) {
  FORWARD_IF_ERROR(nvml_device(handle, device));
  if (!count || (*count && !infos))
    return NVML_ERROR_INVALID_ARGUMENT;
  unsigned room = *count;
  processes->count = state_list_holders(*device, processes->list);
  keep(processes, kind);
  *count = processes->count;
  return processes->count > room ? NVML_ERROR_INSUFFICIENT_SIZE : NVML_SUCCESS;
}

static nvmlReturn_t list(nvmlDevice_t handle, enum processes_kind kind, unsigned *count, nvmlProcessInfo_t *infos) {
  unsigned device;
  struct processes processes;
  FORWARD_IF_ERROR(nvml_list_processes(handle, kind, &device, count, infos, &processes));
  for (unsigned i = 0; i < processes.count; i++)
    infos[i] = (nvmlProcessInfo_t){.pid = processes.list[i].pid,
                                   .usedGpuMemory = processes.list[i].used_bytes,
                                   .gpuInstanceId = gpu_instance(handle, device),
                                   .computeInstanceId = compute_instance(handle, device)};
  return NVML_SUCCESS;
}

static nvmlReturn_t list_v1(nvmlDevice_t handle, enum processes_kind kind, unsigned *count,
                            nvmlProcessInfo_v1_t *infos) {
  unsigned device;
  struct processes processes;
  FORWARD_IF_ERROR(nvml_list_processes(handle, kind, &device, count, infos, &processes));
  for (unsigned i = 0; i < processes.count; i++)
    infos[i] = (nvmlProcessInfo_v1_t){.pid = processes.list[i].pid, .usedGpuMemory = processes.list[i].used_bytes};
  return NVML_SUCCESS;
}

/* A client of an MPS server is in both lists. */
#define LISTS(name, kind)                                                                                              \
  nvmlReturn_t DECLDIR nvmlDeviceGet##name##RunningProcesses(nvmlDevice_t device, unsigned int *count,                 \
                                                             nvmlProcessInfo_v1_t *infos) {                            \
    return list_v1(device, kind, count, infos);                                                                        \
  }                                                                                                                    \
  nvmlReturn_t DECLDIR nvmlDeviceGet##name##RunningProcesses_v2(nvmlDevice_t device, unsigned int *count,              \
                                                                nvmlProcessInfo_v2_t *infos) {                         \
    return list(device, kind, count, infos);                                                                           \
  }                                                                                                                    \
  nvmlReturn_t DECLDIR nvmlDeviceGet##name##RunningProcesses_v3(nvmlDevice_t device, unsigned int *count,              \
                                                                nvmlProcessInfo_t *infos) {                            \
    return list(device, kind, count, infos);                                                                           \
  }
LISTS(Compute, PROCESSES_ALL)
LISTS(MPSCompute, PROCESSES_MPS)

/* Nothing draws. */
static nvmlReturn_t list_none(nvmlDevice_t handle, unsigned *count) {
  unsigned device;
  FORWARD_IF_ERROR(nvml_device(handle, &device));
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

nvmlReturn_t DECLDIR nvmlDeviceGetRunningProcessDetailList(nvmlDevice_t handle, nvmlProcessDetailList_t *details) {
  unsigned device;
  struct processes processes;
  if (details && details->version != nvmlProcessDetailList_v1)
    return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
  if (details && details->mode == DETAIL_GRAPHICS)
    return list_none(handle, &details->numProcArrayEntries);
  if (details && details->mode > DETAIL_ALL)
    return NVML_ERROR_INVALID_ARGUMENT;
  enum processes_kind kind = details && details->mode == DETAIL_MPS ? PROCESSES_MPS : PROCESSES_ALL;
  FORWARD_IF_ERROR(nvml_list_processes(handle, kind, &device, details ? &details->numProcArrayEntries : NULL,
                                       details ? details->procArray : NULL, &processes));
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
  nvmlReturn_t result = nvml_list_processes(handle, PROCESSES_ALL, &device, count, pids, &processes);
  for (unsigned i = 0; result == NVML_SUCCESS && i < processes.count; i++)
    pids[i] = processes.list[i].pid;
  return result;
}

nvmlReturn_t DECLDIR nvmlDeviceGetAccountingStats(nvmlDevice_t handle, unsigned int pid, nvmlAccountingStats_t *stats) {
  unsigned device, room = 0;
  struct processes processes;
  nvmlReturn_t result = nvml_list_processes(handle, PROCESSES_ALL, &device, &room, NULL, &processes);
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
