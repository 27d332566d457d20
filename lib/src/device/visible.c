/* Which GPUs CUDA shows the program: the driver reads CUDA_VISIBLE_DEVICES as it starts. */
#include "device/devices.h"

#include "device/process.h"
#include "shared/limits.h"

#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <unistd.h>

#define VARIABLE "CUDA_VISIBLE_DEVICES"
#define MOST_BYTES (VGPU_MAX_DEVICES * VGPU_UUID_SIZE)
#define MOST_DIGITS 4

struct list {
  char text[MOST_BYTES];
  bool has[VGPU_MAX_DEVICES]; /* GPUs of the share that it names */
};

static int gpu_count(const struct vgpu_limits *share) {
  return share->device_count < VGPU_MAX_DEVICES ? (int)share->device_count : VGPU_MAX_DEVICES;
}

static bool is_index(const char *entry, size_t length) {
  return length > 0 && length <= MOST_DIGITS && strspn(entry, "0123456789") >= length;
}

/* The GPU of the share that a UUID, or its beginning, names; -1: none. */
static int find(const struct vgpu_limits *share, const char *entry, size_t length) {
  for (int i = 0; length > strlen("GPU-") && i < gpu_count(share); i++)
    if (length < VGPU_UUID_SIZE && strncasecmp(share->devices[i].uuid, entry, length) == 0)
      return i;
  return -1;
}

static const char *next_entry(const char *entry, size_t *length) {
  entry += strspn(entry, ", ");
  *length = strcspn(entry, ", ");
  return entry;
}

static void add(struct list *list, const char *entry, size_t length) {
  size_t used = strlen(list->text);
  snprintf(list->text + used, sizeof list->text - used, "%s%.*s", used == 0 ? "" : ",", (int)length, entry);
}

static void add_gpu(struct list *list, const struct vgpu_limits *share, int gpu) {
  list->has[gpu] = true;
  add(list, share->devices[gpu].uuid, strnlen(share->devices[gpu].uuid, VGPU_UUID_SIZE - 1));
}

/* Replaces a GPU that the share does not have, or no longer has, by the first of its GPUs that is not in the list. */
static void add_other(struct list *list, const struct vgpu_limits *share) {
  for (int i = 0; i < gpu_count(share); i++)
    if (!list->has[i]) {
      add_gpu(list, share, i);
      return;
    }
}

static void add_all(struct list *list, const struct vgpu_limits *share) {
  for (int i = 0; i < gpu_count(share); i++)
    add_gpu(list, share, i);
}

static bool has_index(const char *given) {
  size_t length;
  for (const char *entry = next_entry(given, &length); length > 0; entry = next_entry(entry + length, &length))
    if (is_index(entry, length))
      return true;
  return false;
}

/* Has this host more GPUs than the share? */
static bool host_has_more(const struct vgpu_limits *share) {
  unsigned count;
  return hooks_load_nvml() && real.nvmlInit_v2() == NVML_SUCCESS &&
         real.nvmlDeviceGetCount_v2(&count) == NVML_SUCCESS && (int)count > gpu_count(share);
}

enum { NONE = -1, ANOTHER = -2 };

/* Returns the share's GPU that has this number on the host, ANOTHER where it is none of the share's. */
static int find_on_host(const struct vgpu_limits *share, int number) {
  nvmlDevice_t device;
  char uuid[NVML_DEVICE_UUID_V2_BUFFER_SIZE];
  if (real.nvmlDeviceGetHandleByIndex_v2((unsigned)number, &device) != NVML_SUCCESS)
    return NONE;
  int gpu = real.nvmlDeviceGetUUID(device, uuid, sizeof uuid) == NVML_SUCCESS ? find(share, uuid, strlen(uuid)) : -1;
  return gpu >= 0 ? gpu : ANOTHER;
}

/* An index is the place of a GPU in the share, as a container counts. On a host it may be the host's number of one of
 * the share's, and where the share has been moved it meant one that it had. */
static int gpu_of_index(const struct vgpu_limits *share, int index, bool in_container) {
  bool by_host = !in_container && share->moves == 0;
  int gpu = by_host ? find_on_host(share, index) : ANOTHER;
  if (gpu != ANOTHER)
    return gpu;
  return index < gpu_count(share) ? index : in_container ? NONE : ANOTHER;
}

static int gpu_of_uuid(const struct vgpu_limits *share, const char *entry, size_t length) {
  int gpu = find(share, entry, length);
  return gpu >= 0 ? gpu : length > strlen("GPU-") ? ANOTHER : NONE;
}

/* An entry that names no GPU ends the list, as in the driver. */
static void translate(struct list *list, const struct vgpu_limits *share, const char *given, bool in_container) {
  size_t length;
  for (const char *entry = next_entry(given, &length); length > 0; entry = next_entry(entry + length, &length)) {
    int gpu = find(share, entry, length);
    if (gpu >= 0)
      list->has[gpu] = true;
  }
  for (const char *entry = next_entry(given, &length); length > 0; entry = next_entry(entry + length, &length)) {
    bool index = is_index(entry, length);
    int gpu = index ? gpu_of_index(share, atoi(entry), in_container) : gpu_of_uuid(share, entry, length);
    if (gpu == NONE)
      return;
    if (gpu == ANOTHER || (index && !in_container && list->has[gpu]))
      add_other(list, share);
    else
      add_gpu(list, share, gpu);
  }
}

/* Are there GPUs that are none of the share's? A program of the host sees all; by their UUIDs it names those it means.
 */
static bool sees_others(const struct vgpu_limits *share, const char *given, bool in_container) {
  if (in_container)
    return share->movable != 0;
  return gpu_count(share) > 0 && (given == NULL || has_index(given)) && host_has_more(share);
}

void visible_set(void) {
  const struct vgpu_limits *share = process_devices_file();
  const char *given = getenv(VARIABLE);
  bool in_container = access(VGPU_CONTAINER_LIMITS, F_OK) == 0;
  if (share == NULL || (!sees_others(share, given, in_container) && (share->moves == 0 || given == NULL)))
    return;
  struct list list = {0};
  if (given == NULL)
    add_all(&list, share);
  else
    translate(&list, share, given, in_container);
  if (given == NULL || strcmp(given, list.text) != 0)
    setenv(VARIABLE, list.text, 1);
}
