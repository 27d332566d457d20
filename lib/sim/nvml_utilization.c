/* How busy devices and processes were in the last second. Memory traffic is not simulated. */
#include <time.h>

#include "busy.h"
#include "cards.h"
#include "common.h"
#include "nvml_processes.h"

nvmlReturn_t DECLDIR nvmlDeviceGetUtilizationRates(nvmlDevice_t handle, nvmlUtilization_t *utilization) {
  unsigned device;
  FORWARD_IF_ERROR(nvml_device(handle, &device));
  if (!utilization)
    return NVML_ERROR_INVALID_ARGUMENT;
  if (is_instance(device))
    return NVML_ERROR_NOT_SUPPORTED; /* like a card */
  *utilization = (nvmlUtilization_t){.gpu = busy_percent(device, STATE_NO_SLOT)};
  return NVML_SUCCESS;
}

static unsigned long long wall_clock_us(void) {
  struct timespec now;
  clock_gettime(CLOCK_REALTIME, &now);
  return (unsigned long long)now.tv_sec * 1000000 + (unsigned long long)now.tv_nsec / NS_PER_US;
}

/* Returns a sample for each process that was busy in the last second. */
nvmlReturn_t DECLDIR nvmlDeviceGetProcessUtilization(nvmlDevice_t handle, nvmlProcessUtilizationSample_t *samples,
                                                     unsigned int *count, unsigned long long last_seen_us) {
  struct processes processes;
  unsigned device, room = count ? *count : 0, filled = 0;
  unsigned long long now_us = wall_clock_us();
  nvmlReturn_t result = nvml_list_processes(handle, PROCESSES_ALL, &device, count, samples, &processes);
  if (result != NVML_SUCCESS && result != NVML_ERROR_INSUFFICIENT_SIZE)
    return result;
  if (!samples || result == NVML_ERROR_INSUFFICIENT_SIZE) {
    *count = processes.count;
    return processes.count ? NVML_ERROR_INSUFFICIENT_SIZE : NVML_ERROR_NOT_FOUND;
  }
  for (unsigned i = 0; i < processes.count && filled < room && last_seen_us < now_us; i++) {
    unsigned busy = busy_percent(device, processes.list[i].slot);
    if (busy)
      samples[filled++] =
          (nvmlProcessUtilizationSample_t){.pid = processes.list[i].pid, .timeStamp = now_us, .smUtil = busy};
  }
  *count = filled;
  return filled ? NVML_SUCCESS : NVML_ERROR_NOT_FOUND;
}

/* The same with room for more kinds of work, of which none is simulated. */
nvmlReturn_t DECLDIR nvmlDeviceGetProcessesUtilizationInfo(nvmlDevice_t handle, nvmlProcessesUtilizationInfo_t *info) {
  nvmlProcessUtilizationSample_t samples[STATE_MAX_PROCESSES];
  unsigned count = STATE_MAX_PROCESSES;
  if (!info)
    return NVML_ERROR_INVALID_ARGUMENT;
  if (info->version != nvmlProcessesUtilizationInfo_v1)
    return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
  FORWARD_IF_ERROR(nvmlDeviceGetProcessUtilization(handle, samples, &count, info->lastSeenTimeStamp));
  unsigned room = info->procUtilArray ? info->processSamplesCount : 0;
  info->processSamplesCount = count;
  if (count > room)
    return NVML_ERROR_INSUFFICIENT_SIZE;
  for (unsigned i = 0; i < count; i++)
    info->procUtilArray[i] = (nvmlProcessUtilizationInfo_v1_t){
        .timeStamp = samples[i].timeStamp, .pid = samples[i].pid, .smUtil = samples[i].smUtil};
  return NVML_SUCCESS;
}

/* By the host's clock, as samples have it. */
static unsigned long long wall_clock_at_us(uint64_t at_ns, uint64_t now_ns) {
  return wall_clock_us() - (now_ns - at_ns) / NS_PER_US;
}

/* The driver answers after 1.6 ms, whether there is any or not. */
nvmlReturn_t DECLDIR nvmlDeviceGetSamples(nvmlDevice_t handle, nvmlSamplingType_t type, unsigned long long last_seen_us,
                                          nvmlValueType_t *value_type, unsigned int *count, nvmlSample_t *samples) {
  unsigned device, filled = 0;
  FORWARD_IF_ERROR(nvml_device(handle, &device));
  if (type != NVML_GPU_UTILIZATION_SAMPLES || is_instance(device))
    return NVML_ERROR_NOT_SUPPORTED;
  if (!value_type || !count || (samples && *count < BUSY_SAMPLES))
    return NVML_ERROR_INVALID_ARGUMENT;
  uint64_t now_ns = clock_ns(), end_ns = now_ns / BUSY_SAMPLE_NS * BUSY_SAMPLE_NS;
  for (uint64_t at_ns = end_ns - (BUSY_SAMPLES - 1) * BUSY_SAMPLE_NS; samples && at_ns <= end_ns;
       at_ns += BUSY_SAMPLE_NS) {
    unsigned long long at_us = wall_clock_at_us(at_ns, now_ns);
    if (at_us > last_seen_us + BUSY_SAMPLE_NS / NS_PER_US / 2)
      samples[filled++] = (nvmlSample_t){.timeStamp = at_us, .sampleValue.uiVal = busy_sample_percent(device, at_ns)};
  }
  *value_type = NVML_VALUE_TYPE_UNSIGNED_INT;
  *count = samples ? filled : BUSY_SAMPLES;
  return *count ? NVML_SUCCESS : NVML_ERROR_NOT_FOUND;
}
