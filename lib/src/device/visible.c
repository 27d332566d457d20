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
  bool has[VGPU_MAX_DEVICES]; /* of the share's GPUs, those that it names */
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

/* One that the share does not have, or no longer, stands for the first of its GPUs that is not in the list. */
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

/* `counts_own`: the program has no other GPUs than the share's, as in a container. An index is the place of a GPU in
 * the share; where the program sees all of the host's, it meant one that the share had, so that each stands for one of
 * the share's. As in the driver, an entry that names no GPU ends the list. */
static void translate(struct list *list, const struct vgpu_limits *share, const char *given, bool counts_own) {
  size_t length;
  for (const char *entry = next_entry(given, &length); length > 0; entry = next_entry(entry + length, &length)) {
    int gpu = find(share, entry, length);
    if (gpu >= 0)
      list->has[gpu] = true;
  }
  for (const char *entry = next_entry(given, &length); length > 0; entry = next_entry(entry + length, &length)) {
    bool index = is_index(entry, length);
    int gpu = index ? atoi(entry) : find(share, entry, length);
    bool is_own = gpu >= 0 && gpu < gpu_count(share) && (!index || counts_own || !list->has[gpu]);
    if (is_own)
      add_gpu(list, share, gpu);
    else if (index ? !counts_own : length > strlen("GPU-"))
      add_other(list, share);
    else
      return;
  }
}

void visible_set(void) {
  const struct vgpu_limits *share = process_files()->limits;
  const char *given = getenv(VARIABLE);
  bool counts_own = share != NULL && share->movable != 0 && access(VGPU_CONTAINER_LIMITS, F_OK) == 0;
  if (share == NULL || (!counts_own && (share->moves == 0 || given == NULL)))
    return;
  struct list list = {0};
  if (given == NULL)
    add_all(&list, share);
  else
    translate(&list, share, given, counts_own);
  if (given == NULL || strcmp(given, list.text) != 0)
    setenv(VARIABLE, list.text, 1);
}
