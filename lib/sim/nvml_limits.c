/* Memory limits of cgroups, with nvml.h's rules. */
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <linux/capability.h>

#include "cards.h"
#include "cgroups.h"
#include "limits.h"
#include "nvml_handles.h"
#include "state.h"

#ifndef NVML_DEVICE_MEMORY_LIMIT_MAX /* nvml.h before CUDA 13.4 */
typedef struct {
  const char *nameSpace;
  unsigned long long softLimit, hardLimit;
} nvmlSetMemoryLimits_v1_t;
typedef struct {
  const char *nameSpace;
  unsigned long long softLimit, hardLimit, currentUsed;
} nvmlGetMemoryLimits_v1_t;
#pragma GCC visibility push(protected)
nvmlReturn_t nvmlDeviceSetMemoryLimits_v1(nvmlDevice_t device, nvmlSetMemoryLimits_v1_t *limits);
nvmlReturn_t nvmlDeviceGetMemoryLimits_v1(nvmlDevice_t device, nvmlGetMemoryLimits_v1_t *limits);
#pragma GCC visibility pop
#endif

static bool is_administrator(void) {
  struct __user_cap_header_struct head = {_LINUX_CAPABILITY_VERSION_3, 0};
  struct __user_cap_data_struct sets[2];
  return syscall(SYS_capget, &head, sets) == 0 && sets[0].effective >> CAP_SYS_ADMIN & 1;
}

static nvmlReturn_t find_subject(nvmlDevice_t handle, const char *path, unsigned *device, uint64_t *cgroup) {
  FORWARD_IF_ERROR(nvml_device(handle, device));
  if (!limits_exist())
    return NVML_ERROR_FUNCTION_NOT_FOUND; /* an older driver */
  if (is_instance(*device))
    return NVML_ERROR_NOT_SUPPORTED;
  if (!path)
    return NVML_ERROR_INVALID_ARGUMENT;
  *cgroup = cgroup_at(path);
  return *cgroup ? NVML_SUCCESS : NVML_ERROR_OPERATING_SYSTEM;
}

nvmlReturn_t DECLDIR nvmlDeviceSetMemoryLimits_v1(nvmlDevice_t handle, nvmlSetMemoryLimits_v1_t *limits) {
  unsigned device;
  uint64_t cgroup;
  FORWARD_IF_ERROR(find_subject(handle, limits ? limits->nameSpace : NULL, &device, &cgroup));
  if (!is_administrator())
    return NVML_ERROR_NO_PERMISSION;
  uint64_t soft = limits->softLimit, hard = limits->hardLimit, most = sim_config.devices[device].memory_bytes;
  bool is_root = cgroup == cgroup_at(SIM_CGROUP_FOLDER);
  if (is_root || soft > hard || soft > most || (hard > most && hard != SIM_NO_LIMIT))
    return NVML_ERROR_INVALID_ARGUMENT;
  struct memory_limits wanted = {.soft_bytes = soft, .hard_bytes = hard};
  return limits_set(device, cgroup, wanted) ? NVML_SUCCESS : NVML_ERROR_IN_USE;
}

nvmlReturn_t DECLDIR nvmlDeviceGetMemoryLimits_v1(nvmlDevice_t handle, nvmlGetMemoryLimits_v1_t *limits) {
  unsigned device;
  uint64_t cgroup;
  struct memory_limits found;
  FORWARD_IF_ERROR(find_subject(handle, limits ? limits->nameSpace : NULL, &device, &cgroup));
  if (!limits_find(device, cgroup, &found))
    return NVML_ERROR_NOT_FOUND;
  limits->softLimit = found.soft_bytes;
  limits->hardLimit = found.hard_bytes;
  limits->currentUsed = found.used_bytes;
  return NVML_SUCCESS;
}
