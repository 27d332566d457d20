#include "device/devices.h"

#include "base/clock.h"
#include "base/log.h"
#include "device/nvml_processes.h"
#include "device/process.h"
#include "memory/ledger_totals.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define MAX_ORDINALS 64

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER; /* guards adding; never held across a driver call */
static struct device devices[VGPU_MAX_DEVICES];
static int device_count;
static struct device *by_ordinal[MAX_ORDINALS];

static struct device *find_known(const char *uuid) {
  int count = __atomic_load_n(&device_count, __ATOMIC_ACQUIRE);
  for (int i = 0; i < count; i++)
    if (strncmp(devices[i].uuid, uuid, sizeof devices[i].uuid) == 0)
      return &devices[i];
  return NULL;
}

static struct device *find(const char *uuid) {
  struct device *device;
  for (int i = 0; (device = devices_at(i)) != NULL; i++)
    device_follow(device);
  return find_known(uuid);
}

/* NVML knows a MIG instance and a whole GPU by differently prefixed UUIDs; CUDA has the bytes alone. */
static void format_uuid(const CUuuid *uuid, const char *prefix, char text[VGPU_UUID_SIZE]) {
  const unsigned char *b = (const unsigned char *)uuid->bytes;
  snprintf(text, VGPU_UUID_SIZE, "%s-%02x%02x%02x%02x-%02x%02x-%02x%02x-%02x%02x-%02x%02x%02x%02x%02x%02x", prefix,
           b[0], b[1], b[2], b[3], b[4], b[5], b[6], b[7], b[8], b[9], b[10], b[11], b[12], b[13], b[14], b[15]);
}

static void find_in_nvml(struct device *device) {
  if (!hooks_load_nvml() || real.nvmlInit_v2() != NVML_SUCCESS) {
    static int said;
    log_once(&said, LOG_WARNING, "NVML cannot be had; memory that the driver takes for contexts is not counted");
    return;
  }
  device->in_nvml = real.nvmlDeviceGetHandleByUUID(device->uuid, &device->nvml) == NVML_SUCCESS;
}

static bool is_instance(const struct device *device) {
  return strncmp(device->uuid, "MIG-", strlen("MIG-")) == 0;
}

/* A variable's limit is the program's to have: on the device, since its share may have the host serve. */
static void limit_program(const struct device *device) {
  struct limits limits = limits_from_environment(LIMITS_EVERY_DEVICE, device->total_bytes);
  limits.memory_bytes = limits.virtual_bytes;
  level_files_limit_program(device->number, limits);
}

static void complete(struct device *device, int ordinal) {
  nvmlMemory_t memory;
  if (device->in_nvml && real.nvmlDeviceGetMemoryInfo(device->nvml, &memory) == NVML_SUCCESS)
    device->total_bytes = memory.total;
  else if (ordinal >= 0) {
    size_t bytes = 0;
    real.cuDeviceTotalMem_v2(&bytes, ordinal);
    device->total_bytes = bytes;
  }
  unsigned index = ordinal >= 0 ? (unsigned)ordinal : 0;
  if (device->in_nvml && !is_instance(device)) /* NVML numbers instances on each GPU from 0; a program has one */
    real.nvmlDeviceGetIndex(device->nvml, &index);
  const struct vgpu_limits *file = process_devices_file();
  device->number = file != NULL ? limits_find_device(file, device->uuid) : (int)index;
  process_find_devices();
  for (int level = 1; level < process_levels() && device->number >= 0; level++)
    if (process_number_at(level, device->number) < 0)
      device->number = -1;
  if (device->number >= VGPU_MAX_DEVICES)
    device->number = -1;
  if (file == NULL)
    device->environment = limits_from_environment((int)index, device->total_bytes);
  else if (process_files()->is_of_program && device->number >= 0)
    limit_program(device);
}

struct noted {
  const struct device *device;
  struct limits limits;
};

static void note_limits(struct vgpu_device_shared *shared, void *noted_) {
  const struct noted *noted = noted_;
  memcpy(shared->uuid, noted->device->uuid, sizeof shared->uuid);
  shared->memory_limit_bytes = noted->limits.memory_bytes;
  shared->sm_limit_percent = noted->limits.sm_percent;
}

static void show_limits(const struct device *device) {
  if (device->number < 0)
    return;
  struct limits limits = device_limits(device);
  __atomic_store_n(&process_ledger_view()->own->most_bytes[device->number], device->total_bytes, __ATOMIC_RELAXED);
  for (int level = 0; level < process_levels(); level++) {
    struct noted noted = {device, device_limits_at(device, level)};
    device_state_change(device_state(device, level), note_limits, &noted);
  }
  bool unlimited = limits.memory_bytes == VGPU_NO_MEMORY_LIMIT;
  log_line(LOG_INFO, "limits of %s: %llu MiB%s, %u %% of its time", device->uuid,
           (unsigned long long)(unlimited ? device->total_bytes : limits.memory_bytes) >> 20, unlimited ? " (all)" : "",
           limits.sm_percent);
  if (!device->in_nvml)
    device_not_enforced(device, VGPU_NOT_ENFORCED_MEMORY);
}

/* Adds the device unless another thread was faster. */
static struct device *add(const struct device *device) {
  pthread_mutex_lock(&lock);
  struct device *added = find_known(device->uuid);
  if (added == NULL && device_count < VGPU_MAX_DEVICES) {
    added = &devices[device_count];
    *added = *device;
    show_limits(added);
    __atomic_store_n(&device_count, device_count + 1, __ATOMIC_RELEASE);
  }
  pthread_mutex_unlock(&lock);
  return added;
}

static struct device *identify(CUdevice ordinal) {
  CUuuid uuid;
  if (real.cuDeviceGetUuid_v2(&uuid, ordinal) != CUDA_SUCCESS && real.cuDeviceGetUuid(&uuid, ordinal) != CUDA_SUCCESS)
    return NULL;
  struct device device = {0};
  format_uuid(&uuid, "MIG", device.uuid);
  find_in_nvml(&device);
  if (!device.in_nvml) {
    format_uuid(&uuid, "GPU", device.uuid);
    find_in_nvml(&device);
  }
  struct device *known = find(device.uuid);
  if (known != NULL)
    return known;
  complete(&device, ordinal);
  return add(&device);
}

struct device *device_of_ordinal(CUdevice ordinal) {
  if (ordinal < 0 || ordinal >= MAX_ORDINALS)
    return NULL;
  struct device *device = __atomic_load_n(&by_ordinal[ordinal], __ATOMIC_ACQUIRE);
  if (device == NULL) {
    device = identify(ordinal);
    bool is_new = __atomic_exchange_n(&by_ordinal[ordinal], device, __ATOMIC_ACQ_REL) == NULL && device != NULL;
    if (is_new && device->number < 0) /* NVML alone shows a process of the host what it has not been granted */
      log_line(LOG_ERROR, "GPU %s was not granted to this program; nothing may be allocated on it", device->uuid);
  }
  return device;
}

/* A thread's last answer, good until a context ends anywhere. */
static HOT_DATA uint64_t contexts_ended;
static __thread struct {
  uint64_t contexts_ended;
  struct current current;
} last = {.contexts_ended = UINT64_MAX};

void device_contexts_change(void) {
  __atomic_add_fetch(&contexts_ended, 1, __ATOMIC_SEQ_CST);
}

HOT struct current device_current(void) {
  CUcontext context = NULL;
  if (real.cuCtxGetCurrent(&context) != CUDA_SUCCESS || context == NULL)
    return (struct current){0};
  uint64_t ended = __atomic_load_n(&contexts_ended, __ATOMIC_ACQUIRE);
  if (last.current.context == context && last.contexts_ended == ended)
    return last.current;
  struct current current = {.context = context};
  if (real.cuCtxGetDevice(&current.ordinal) == CUDA_SUCCESS)
    current.device = device_of_ordinal(current.ordinal);
  if (current.device != NULL) {
    last.current = current;
    last.contexts_ended = ended;
  }
  return current;
}

struct device *device_of_current_context(void) {
  return device_current().device;
}

struct device *device_of_nvml(nvmlDevice_t handle) {
  struct device device = {.in_nvml = true, .nvml = handle};
  char uuid[NVML_DEVICE_UUID_V2_BUFFER_SIZE];
  if (real.nvmlDeviceGetUUID(handle, uuid, sizeof uuid) != NVML_SUCCESS)
    return NULL;
  snprintf(device.uuid, sizeof device.uuid, "%.*s", (int)sizeof device.uuid - 1, uuid);
  struct device *known = find(device.uuid);
  if (known != NULL)
    return known;
  complete(&device, -1);
  return add(&device);
}

bool device_primary_is_active(CUdevice ordinal) {
  unsigned flags;
  int active = 0;
  return real.cuDevicePrimaryCtxGetState(ordinal, &flags, &active) == CUDA_SUCCESS && active;
}

struct device *devices_at(int index) {
  return index < __atomic_load_n(&device_count, __ATOMIC_ACQUIRE) ? &devices[index] : NULL;
}

HOT struct limits device_limits(const struct device *device) {
  struct limits limits = device_limits_at(device, 0);
  for (int level = 1; level < process_levels(); level++)
    limits = limits_within(device_limits_at(device, level), limits);
  return limits;
}

const char *device_uuid_at(const struct device *device, int level) {
  const struct vgpu_limits *file = level == 0 ? process_devices_file() : process_files_at(level)->limits;
  return file == NULL || device->number < 0 ? device->uuid
                                            : file->devices[process_number_at(level, device->number)].uuid;
}

void device_follow(struct device *device) {
  const char *uuid = device_uuid_at(device, 0);
  struct device now = {0};
  bool is_named = device->number >= 0 && uuid[0] != '\0'; /* and not in the place of limits that grant nothing */
  if (!is_named || strncmp(device->uuid, uuid, sizeof device->uuid - 1) == 0)
    return;
  snprintf(now.uuid, sizeof now.uuid, "%.*s", (int)sizeof now.uuid - 1, uuid);
  find_in_nvml(&now);
  pthread_mutex_lock(&lock);
  memcpy(device->uuid, now.uuid, sizeof device->uuid);
  device->nvml = now.nvml;
  device->in_nvml = now.in_nvml;
  show_limits(device);
  pthread_mutex_unlock(&lock);
  __atomic_store_n(&device->corrected_ns, 0, __ATOMIC_SEQ_CST);
}

bool device_limits_memory(const struct device *device) {
  struct limits limits = device_limits(device);
  return limits.memory_bytes < device->total_bytes || limits_oversubscribe(limits);
}

struct device_state *device_state(const struct device *device, int level) {
  return process_device_state(level, device->number);
}

bool device_uses_more_than(const struct device *device, int level, uint64_t bytes) {
  return device->number >= 0 && ledger_uses_more_than(process_ledger_at(level), device->number, bytes);
}

uint64_t device_used_bytes(const struct device *device, int level) {
  return device->number < 0 ? 0 : ledger_used(process_ledger_at(level), device->number);
}

uint64_t device_host_bytes(const struct device *device, int level) {
  return device->number < 0 ? 0 : ledger_parts(process_ledger_at(level), device->number).host_bytes;
}

void device_not_enforced(const struct device *device, uint32_t flag) {
  bool limited = flag != VGPU_NOT_ENFORCED_MEMORY || device_limits_memory(device);
  for (int level = 0; device->number >= 0 && limited && level < process_levels(); level++)
    device_state_not_enforced(device_state(device, level), flag);
}

static void devices_forget(void) {
  pthread_mutex_init(&lock, NULL);
  device_count = 0;
  memset(by_ordinal, 0, sizeof by_ordinal);
  device_contexts_change();
}
PROCESS_IN_CHILD(devices_forget);
