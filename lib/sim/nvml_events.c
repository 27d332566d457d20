/* Faults of devices, which tests write into <state file>.faults as they happen, a line each:
 *
 *   xid UUID NUMBER    the driver reports an XID error: an event for those who wait for it
 *   lost UUID          the device has fallen off the bus, until a line
 *   back UUID          says that it is there again
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "nvml_api.h"
#include "state_file.h"

#define LINE_SIZE 256
#define POLL_NS 10000000L

struct nvmlEventSet_st {
  bool registered[SIM_MAX_DEVICES];
  long read_until; /* faults before this place in the file have been reported, or happened before the set was made */
};

static FILE *open_faults(void) {
  char path[4096 + 16];
  snprintf(path, sizeof path, "%s.faults", state_file_path());
  return fopen(path, "re");
}

/* A line that ends in a newline; one that is still being written is for the next time. */
static bool read_line(FILE *file, char line[LINE_SIZE]) {
  return fgets(line, LINE_SIZE, file) && strchr(line, '\n');
}

static bool names(const char *line, const char *what, const char *uuid) {
  char fault[8], named[64];
  return sscanf(line, "%7s %63s", fault, named) == 2 && strcmp(fault, what) == 0 && strcasecmp(named, uuid) == 0;
}

bool nvml_is_lost(unsigned device) {
  const char *uuid = sim_config.devices[device].uuid;
  char line[LINE_SIZE];
  bool lost = false;
  FILE *file = open_faults();
  if (!file)
    return false;
  while (read_line(file, line))
    lost = (lost || names(line, "lost", uuid)) && !names(line, "back", uuid);
  fclose(file);
  return lost;
}

nvmlReturn_t DECLDIR nvmlEventSetCreate(nvmlEventSet_t *set) {
  nvmlReturn_t result = nvml_ready();
  if (result != NVML_SUCCESS)
    return result;
  if (!set)
    return NVML_ERROR_INVALID_ARGUMENT;
  *set = calloc(1, sizeof **set);
  if (!*set)
    return NVML_ERROR_MEMORY;
  FILE *file = open_faults();
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
  nvmlReturn_t result = nvml_device(handle, &device);
  if (result != NVML_SUCCESS)
    return result;
  if (!types)
    return NVML_ERROR_INVALID_ARGUMENT;
  *types = nvmlEventTypeXidCriticalError;
  return NVML_SUCCESS;
}

nvmlReturn_t DECLDIR nvmlDeviceRegisterEvents(nvmlDevice_t handle, unsigned long long types, nvmlEventSet_t set) {
  unsigned device;
  nvmlReturn_t result = nvml_device(handle, &device);
  if (result != NVML_SUCCESS)
    return result;
  if (!set)
    return NVML_ERROR_INVALID_ARGUMENT;
  if (types & ~nvmlEventTypeXidCriticalError)
    return NVML_ERROR_NOT_SUPPORTED;
  set->registered[device] = true;
  return NVML_SUCCESS;
}

/* The next XID of a registered device that has not been reported to this set. */
static bool next_event(nvmlEventSet_t set, nvmlEventData_t *data) {
  char line[LINE_SIZE];
  unsigned long long xid;
  bool found = false;
  FILE *file = open_faults();
  if (!file)
    return false;
  if (fseek(file, set->read_until, SEEK_SET) == 0)
    while (!found && read_line(file, line)) {
      set->read_until = ftell(file);
      for (unsigned device = 0; device < sim_config.device_count && !found; device++) {
        found = set->registered[device] && names(line, "xid", sim_config.devices[device].uuid) &&
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
    if (set->registered[device] && nvml_is_lost(device))
      return true;
  return false;
}

nvmlReturn_t DECLDIR nvmlEventSetWait_v2(nvmlEventSet_t set, nvmlEventData_t *data, unsigned int timeout_ms) {
  nvmlReturn_t result = nvml_ready();
  if (result != NVML_SUCCESS)
    return result;
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
