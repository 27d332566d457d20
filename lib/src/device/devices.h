/* The GPUs as this process meets them (CUDA ordinals, NVML handles), told apart by UUID, with their limits. */
#pragma once

#include "compute/meter.h"
#include "device/process.h"
#include "hook/hooks.h"
#include "memory/ledger.h"
#include "shared/limits.h"

struct device {
  char uuid[VGPU_UUID_SIZE]; /* when it was last looked at */
  int number;                /* in the usage file, and in the limits file if there is one; -1: not granted */
  uint64_t total_bytes;
  bool in_nvml;
  nvmlDevice_t nvml;
  CUcontext primary_context;      /* last given to the program */
  struct limits environment;      /* limits from variables; without a limits file only */
  int64_t corrected_ns;           /* when overhead was last asked of NVML */
  struct ledger_range uncounted;  /* NVML's bytes then that the ledger does not have as allocated */
  uint64_t used_when_asked_bytes; /* by the container, as far as was known then */
  uint64_t uncounted_elsewhere_bytes[VGPU_MAX_LEVELS]; /* NVML's bytes then of the other processes of each level,
                                                           which they do not count yet */
  bool is_listed;                                      /* NVML listed this process then */
  struct meter *meter;                                 /* stream/meters.c's; NULL until something is launched */
  bool was_tried;                                      /* stream/meters.c's: whether the driver takes work off it */
  bool in_company;                                     /* stream/meters.c's: another tenant used it of late */
  bool is_measured; /* stream/meters.c's: for company or a limit, at the last refresh */
};

/* NULL when the driver does not know the ordinal, or no context is current. */
struct device *device_of_ordinal(CUdevice ordinal);
struct device *device_of_current_context(void);

/* The caller: the current context and its device. Costs one question to the driver. */
struct current {
  CUcontext context; /* NULL: none */
  CUdevice ordinal;
  struct device *device; /* NULL: none, or not known to the driver */
};
struct current device_current(void);

/* Call before a context ends: the next one may be on another device and have the same handle. */
void device_contexts_change(void);

struct device *device_of_nvml(nvmlDevice_t handle);

/* Does the device's primary context exist? */
bool device_primary_is_active(CUdevice ordinal);

/* The devices met so far; NULL past the last. */
struct device *devices_at(int index);

/* The limits now, of all levels together or of one: the host may change the files at any time. */
struct limits device_limits(const struct device *device);
static inline struct limits device_limits_at(const struct device *device, int level) {
  const struct vgpu_limits *file = process_files_at(level)->limits;
  if (file == NULL && device->number >= 0)
    return device->environment;
  return limits_from_file(file, device->number < 0 ? -1 : process_number_at(level, device->number));
}

/* Its UUID in the limits file of a level, which changes there when the share is moved to another GPU. */
const char *device_uuid_at(const struct device *device, int level);

/* Notes that the share has been moved to another GPU of the same kind, if it has. */
void device_follow(struct device *device);

/* Before the driver starts: sets CUDA_VISIBLE_DEVICES anew where the share has been moved to other GPUs than it names,
 * and in a container that has more GPUs' nodes than its share has GPUs. There the program counts the share's alone. */
void visible_set(void);

bool device_limits_memory(const struct device *device);

/* The state, at a level, of a device that has a number. */
struct device_state *device_state(const struct device *device, int level);

/* Do all processes of the level hold more on the device than that? */
bool device_uses_more_than(const struct device *device, int level, uint64_t bytes);

/* Bytes that all processes of the level hold on the device, and in memory of the host in its place. */
uint64_t device_used_bytes(const struct device *device, int level);
uint64_t device_host_bytes(const struct device *device, int level);

/* Notes that a limit could not be held, for display: `flag` is one of VGPU_NOT_ENFORCED_*. */
void device_not_enforced(const struct device *device, uint32_t flag);

/* While a thread captures a stream in global mode, most questions to the driver are an error and end the capture. The
 * library asks its own in relaxed mode and leaves the thread as it was. */

static inline CUstreamCaptureMode capture_relax(void) {
  CUstreamCaptureMode mode = CU_STREAM_CAPTURE_MODE_RELAXED;
  return real.cuThreadExchangeStreamCaptureMode(&mode) == CUDA_SUCCESS ? mode : CU_STREAM_CAPTURE_MODE_RELAXED;
}

static inline void capture_restore(CUstreamCaptureMode mode) {
  real.cuThreadExchangeStreamCaptureMode(&mode);
}

/* Does the stream capture, as far as it says? Then what is asked of it happens when its graph is launched. */
static inline bool capture_is_active(CUstream stream) {
  CUstreamCaptureStatus status;
  return real.cuStreamIsCapturing(stream, &status) != CUDA_SUCCESS || status != CU_STREAM_CAPTURE_STATUS_NONE;
}
