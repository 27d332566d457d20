/* The processes that hold memory of a device. One PID namespace sees its own processes only, by its own numbers. */
#include <time.h>

#include "nvml_api.h"
#include "state.h"
#include "timeline.h"

#define NO_MIG_INSTANCE 0xFFFFFFFFu

struct process {
  unsigned slot;
  uint32_t pid;
  uint64_t used_bytes;
};

struct processes {
  unsigned count;
  struct process list[STATE_MAX_PROCESSES];
};

static void add_process(unsigned slot, struct state_process_device *use, void *argument) {
  struct processes *processes = argument;
  uint64_t used_bytes = atomic_load(&use->used_bytes);
  uint32_t pid = used_bytes ? state_pid(slot) : 0;
  if (pid)
    processes->list[processes->count++] = (struct process){slot, pid, used_bytes};
}

/* As NVML does: too small a buffer gets the number that is needed. */
static nvmlReturn_t list_processes(nvmlDevice_t handle, unsigned *count, const void *infos,
                                   struct processes *processes) {
  unsigned device;
  nvmlReturn_t result = nvml_device(handle, &device);
  if (result != NVML_SUCCESS)
    return result;
  if (!count || (*count && !infos))
    return NVML_ERROR_INVALID_ARGUMENT;
  processes->count = 0;
  state_visit_live(device, add_process, processes);
  unsigned room = *count;
  *count = processes->count;
  return processes->count > room ? NVML_ERROR_INSUFFICIENT_SIZE : NVML_SUCCESS;
}

nvmlReturn_t DECLDIR nvmlDeviceGetComputeRunningProcesses_v3(nvmlDevice_t device, unsigned int *count,
                                                             nvmlProcessInfo_t *infos) {
  struct processes processes;
  nvmlReturn_t result = list_processes(device, count, infos, &processes);
  if (result != NVML_SUCCESS)
    return result;
  for (unsigned i = 0; i < processes.count; i++)
    infos[i] = (nvmlProcessInfo_t){.pid = processes.list[i].pid,
                                   .usedGpuMemory = processes.list[i].used_bytes,
                                   .gpuInstanceId = NO_MIG_INSTANCE,
                                   .computeInstanceId = NO_MIG_INSTANCE};
  return NVML_SUCCESS;
}

nvmlReturn_t DECLDIR nvmlDeviceGetComputeRunningProcesses_v2(nvmlDevice_t device, unsigned int *count,
                                                             nvmlProcessInfo_v2_t *infos) {
  return nvmlDeviceGetComputeRunningProcesses_v3(device, count, infos);
}

nvmlReturn_t DECLDIR nvmlDeviceGetComputeRunningProcesses(nvmlDevice_t device, unsigned int *count,
                                                          nvmlProcessInfo_v1_t *infos) {
  struct processes processes;
  nvmlReturn_t result = list_processes(device, count, infos, &processes);
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

static unsigned long long wall_clock_us(void) {
  struct timespec now;
  clock_gettime(CLOCK_REALTIME, &now);
  return (unsigned long long)now.tv_sec * 1000000 + (unsigned long long)now.tv_nsec / NS_PER_US;
}

/* One sample per process that was busy in the last second. */
nvmlReturn_t DECLDIR nvmlDeviceGetProcessUtilization(nvmlDevice_t handle, nvmlProcessUtilizationSample_t *samples,
                                                     unsigned int *count, unsigned long long last_seen_us) {
  struct processes processes;
  unsigned device, room = count ? *count : 0, filled = 0;
  unsigned long long now_us = wall_clock_us();
  nvmlReturn_t result = list_processes(handle, count, samples, &processes);
  if (result != NVML_SUCCESS && result != NVML_ERROR_INSUFFICIENT_SIZE)
    return result;
  if (!samples || result == NVML_ERROR_INSUFFICIENT_SIZE) {
    *count = processes.count;
    return processes.count ? NVML_ERROR_INSUFFICIENT_SIZE : NVML_ERROR_NOT_FOUND;
  }
  nvml_device(handle, &device);
  for (unsigned i = 0; i < processes.count && filled < room && last_seen_us < now_us; i++) {
    unsigned busy = timeline_busy_percent_of(device, processes.list[i].slot);
    if (busy)
      samples[filled++] =
          (nvmlProcessUtilizationSample_t){.pid = processes.list[i].pid, .timeStamp = now_us, .smUtil = busy};
  }
  *count = filled;
  return filled ? NVML_SUCCESS : NVML_ERROR_NOT_FOUND;
}
