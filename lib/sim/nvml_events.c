/* Sets of events: what the driver reports of devices to those who wait for it. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "nvml_faults.h"
#include "nvml_handles.h"

#define POLL_NS 10000000L

struct nvmlEventSet_st {
  bool registered[SIM_MAX_DEVICES];
  long read_until; /* faults before this place in the file have been reported, or happened before the set was made */
};

nvmlReturn_t DECLDIR nvmlEventSetCreate(nvmlEventSet_t *set) {
  FORWARD_IF_ERROR(nvml_ready());
  if (!set)
    return NVML_ERROR_INVALID_ARGUMENT;
  *set = calloc(1, sizeof **set);
  if (!*set)
    return NVML_ERROR_MEMORY;
  FILE *file = faults_open();
  if (file) {
    if (fseek(file, 0, SEEK_END) == 0)
      (*set)->read_until = ftell(file);
    fclose(file);
  }
  return NVML_SUCCESS;
}

nvmlReturn_t DECLDIR nvmlEventSetFree(nvmlEventSet_t set) {
  free(set);
  return set ? NVML_SUCCESS : NVML_ERROR_INVALID_ARGUMENT;
}

nvmlReturn_t DECLDIR nvmlDeviceGetSupportedEventTypes(nvmlDevice_t handle, unsigned long long *types) {
  unsigned device;
  FORWARD_IF_ERROR(nvml_device(handle, &device));
  if (!types)
    return NVML_ERROR_INVALID_ARGUMENT;
  *types = nvmlEventTypeXidCriticalError;
  return NVML_SUCCESS;
}

nvmlReturn_t DECLDIR nvmlDeviceRegisterEvents(nvmlDevice_t handle, unsigned long long types, nvmlEventSet_t set) {
  unsigned device;
  FORWARD_IF_ERROR(nvml_device(handle, &device));
  if (!set)
    return NVML_ERROR_INVALID_ARGUMENT;
  if (types & ~nvmlEventTypeXidCriticalError)
    return NVML_ERROR_NOT_SUPPORTED;
  set->registered[device] = true;
  return NVML_SUCCESS;
}

/* The next XID of a registered device that has not been reported to this set. */
static bool next_event(nvmlEventSet_t set, nvmlEventData_t *data) {
  char line[FAULT_LINE_SIZE];
  unsigned long long xid;
  bool found = false;
  FILE *file = faults_open();
  if (!file)
    return false;
  if (fseek(file, set->read_until, SEEK_SET) == 0)
    while (!found && faults_read_line(file, line)) {
      set->read_until = ftell(file);
      for (unsigned device = 0; device < sim_config.device_count && !found; device++) {
        found = set->registered[device] && fault_names(line, "xid", sim_config.devices[device].uuid) &&
                sscanf(line, "%*s %*s %llu", &xid) == 1;
        if (found)
          *data = (nvmlEventData_t){
              .device = nvml_handle(device), .eventType = nvmlEventTypeXidCriticalError, .eventData = xid};
      }
    }
  fclose(file);
  return found;
}

static bool has_lost_device(nvmlEventSet_t set) {
  for (unsigned device = 0; device < sim_config.device_count; device++)
    if (set->registered[device] && fault_is_lost(device))
      return true;
  return false;
}

nvmlReturn_t DECLDIR nvmlEventSetWait_v2(nvmlEventSet_t set, nvmlEventData_t *data, unsigned int timeout_ms) {
  FORWARD_IF_ERROR(nvml_ready());
  if (!set || !data)
    return NVML_ERROR_INVALID_ARGUMENT;
  for (uint64_t waited_ns = 0; true; waited_ns += POLL_NS) {
    if (has_lost_device(set))
      return NVML_ERROR_GPU_IS_LOST; /* whether events of others come all the same nvml.h does not say */
    if (next_event(set, data))
      return NVML_SUCCESS;
    if (waited_ns >= timeout_ms * 1000000ULL)
      return NVML_ERROR_TIMEOUT;
    nanosleep(&(struct timespec){.tv_nsec = POLL_NS}, NULL);
  }
}

nvmlReturn_t DECLDIR nvmlEventSetWait(nvmlEventSet_t set, nvmlEventData_t *data, unsigned int timeout_ms) {
  return nvmlEventSetWait_v2(set, data, timeout_ms);
}
