/*
 * Utilization: the container's own, in percent of what it may have (shared/history.h). Where compute is limited it
 * is what was measured and charged, else what the driver says of the container's processes.
 */
#include "base/clock.h"
#include "nvml/view.h"
#include "shared/history.h"

#include <stdlib.h>
#include <time.h>

#define PERIOD_US 1000000ULL
#define FEW 64

static unsigned long long wall_clock_us(void) {
  struct timespec now;
  clock_gettime(CLOCK_REALTIME, &now);
  return (unsigned long long)now.tv_sec * 1000000 + (unsigned long long)now.tv_nsec / 1000;
}

/* ---- of each process, by the driver ---------------------------------------------------------------------------- */

/* Keeps the container's rows. The rows of the two versions have the same names, but other layouts. */
#define KEEP_OWN(rows, count, limit_percent)                                                                           \
  do {                                                                                                                 \
    unsigned kept = 0;                                                                                                 \
    for (unsigned i = 0; i < (count); i++)                                                                             \
      if (nvml_view_has_process((rows)[i].pid)) {                                                                      \
        (rows)[kept] = (rows)[i];                                                                                      \
        (rows)[kept].smUtil = utilization_of_limit((rows)[kept].smUtil, limit_percent);                                \
        kept++;                                                                                                        \
      }                                                                                                                \
    (count) = kept;                                                                                                    \
  } while (0)

nvmlReturn_t nvmlDeviceGetProcessUtilization(nvmlDevice_t handle, nvmlProcessUtilizationSample_t *samples,
                                             unsigned int *count, unsigned long long last_seen_us) {
  hooks_load_nvml();
  nvmlReturn_t result = real.nvmlDeviceGetProcessUtilization(handle, samples, count, last_seen_us);
  struct device *device = result == NVML_SUCCESS && samples != NULL ? nvml_view_device(handle) : NULL;
  if (device == NULL)
    return result;
  KEEP_OWN(samples, *count, device_limits(device).sm_percent);
  return *count > 0 ? NVML_SUCCESS : NVML_ERROR_NOT_FOUND;
}

nvmlReturn_t nvmlDeviceGetProcessesUtilizationInfo(nvmlDevice_t handle, nvmlProcessesUtilizationInfo_t *info) {
  hooks_load_nvml();
  nvmlReturn_t result = real.nvmlDeviceGetProcessesUtilizationInfo(handle, info);
  struct device *device = result == NVML_SUCCESS && info->procUtilArray != NULL ? nvml_view_device(handle) : NULL;
  if (device == NULL)
    return result;
  KEEP_OWN(info->procUtilArray, info->processSamplesCount, device_limits(device).sm_percent);
  return info->processSamplesCount > 0 ? NVML_SUCCESS : NVML_ERROR_NOT_FOUND;
}

/* ---- of the device --------------------------------------------------------------------------------------------- */

/* Is there a younger row of the same process? */
static bool is_outdated(const nvmlProcessUtilizationSample_t *samples, unsigned count, unsigned at) {
  for (unsigned i = 0; i < count; i++)
    if (samples[i].pid == samples[at].pid && samples[i].timeStamp > samples[at].timeStamp)
      return true;
  return false;
}

static nvmlUtilization_t sum_of_own(const nvmlProcessUtilizationSample_t *samples, unsigned count) {
  nvmlUtilization_t sum = {0};
  for (unsigned i = 0; i < count; i++)
    if (nvml_view_has_process(samples[i].pid) && !is_outdated(samples, count, i)) {
      sum.gpu += samples[i].smUtil;
      sum.memory += samples[i].memUtil;
    }
  sum.gpu = sum.gpu < 100 ? sum.gpu : 100;
  sum.memory = sum.memory < 100 ? sum.memory : 100;
  return sum;
}

/* Reads the driver's figures of the container's processes for the last second; false where it has none. */
static bool ask_driver(nvmlDevice_t handle, nvmlUtilization_t *utilization) {
  nvmlProcessUtilizationSample_t few[FEW], *samples = few;
  unsigned count = FEW;
  unsigned long long since_us = wall_clock_us() - PERIOD_US;
  nvmlReturn_t result = real.nvmlDeviceGetProcessUtilization(handle, samples, &count, since_us);
  if (result == NVML_ERROR_INSUFFICIENT_SIZE) {
    count += FEW;
    samples = malloc(count * sizeof *samples);
    if (samples == NULL)
      return false;
    result = real.nvmlDeviceGetProcessUtilization(handle, samples, &count, since_us);
  }
  if (result == NVML_SUCCESS)
    *utilization = sum_of_own(samples, count);
  else if (result == NVML_ERROR_NOT_FOUND)
    *utilization = (nvmlUtilization_t){0}; /* nobody was busy */
  if (samples != few)
    free(samples);
  return result == NVML_SUCCESS || result == NVML_ERROR_NOT_FOUND;
}

/* Shows the driver's figure for the whole device where neither we nor the driver can tell whose work it was. */
nvmlReturn_t nvmlDeviceGetUtilizationRates(nvmlDevice_t handle, nvmlUtilization_t *utilization) {
  hooks_load_nvml();
  nvmlReturn_t result = real.nvmlDeviceGetUtilizationRates(handle, utilization);
  struct device *device = result == NVML_SUCCESS ? nvml_view_device(handle) : NULL;
  if (device == NULL)
    return result;
  if (device->number < 0)
    *utilization = (nvmlUtilization_t){0};
  else
    ask_driver(handle, utilization);
  uint32_t limit_percent = device_limits(device).sm_percent;
  struct vgpu_device_shared shared;
  if (device->number >= 0 && limit_percent != VGPU_NO_SM_LIMIT && device_state_read(device_state(device, 0), &shared))
    utilization->gpu = utilization_measured(&shared, clock_now_ns(), limit_percent);
  return result;
}

/* The driver's samples are those of all tenants together. It refuses them itself where a GPU is shared by MIG. */
nvmlReturn_t nvmlDeviceGetSamples(nvmlDevice_t handle, nvmlSamplingType_t type, unsigned long long last_seen_us,
                                  nvmlValueType_t *value_type, unsigned int *count, nvmlSample_t *samples) {
  hooks_load_nvml();
  bool is_utilization = type == NVML_GPU_UTILIZATION_SAMPLES || type == NVML_MEMORY_UTILIZATION_SAMPLES;
  if (is_utilization && nvml_view_device(handle) != NULL)
    return NVML_ERROR_NOT_SUPPORTED;
  return real.nvmlDeviceGetSamples(handle, type, last_seen_us, value_type, count, samples);
}
