#include "scheduler/channels.h"

#include "base/claim.h"
#include "base/compiler.h"
#include "base/libc_symbols.h"

#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#define FIRST_ROOM 256

enum kind { NOTHING, DEVICE, SUBDEVICE, GROUP, CHANNEL };

struct object {
  enum kind kind;
  bool is_off; /* by us, and once: the driver counts */
  int file;
  dev_t file_device;
  ino_t file_inode;
  uint32_t client, parent, handle;
};

static struct object *objects;
static uint32_t room, object_count, generation;
static bool are_all_known = true; /* else there was no memory for some */
static int32_t lock;              /* a claim, never held across a call of the driver */

/* ---- what the driver makes and frees ----------------------------------------------------------------------------- */

static enum kind kind_of(uint32_t object_class, const void *parameters) {
  const struct rm_group_parameters *group = parameters;
  if (object_class == RM_CLASS_GROUP)
    return group != NULL && group->engine == RM_ENGINE_COMPUTE ? GROUP : NOTHING;
  return object_class == RM_CLASS_DEVICE      ? DEVICE
         : object_class == RM_CLASS_SUBDEVICE ? SUBDEVICE
         : RM_IS_CHANNEL(object_class)        ? CHANNEL
                                              : NOTHING;
}

static struct object *find(enum kind kind, uint32_t client, uint32_t handle) {
  for (uint32_t i = 0; i < object_count; i++)
    if (objects[i].kind == kind && objects[i].client == client && objects[i].handle == handle)
      return &objects[i];
  return NULL;
}

static bool make_room(void) {
  uint32_t more = room == 0 ? FIRST_ROOM : 2 * room;
  struct object *before = objects, *moved = calloc(more, sizeof *moved);
  if (moved == NULL)
    return false;
  if (before != NULL)
    memcpy(moved, before, object_count * sizeof *moved);
  objects = moved;
  room = more;
  free(before);
  return true;
}

static void add(const struct object *object) {
  uint32_t place = 0;
  while (place < object_count && objects[place].kind != NOTHING)
    place++;
  if (place == room && !make_room()) {
    are_all_known = false;
    return;
  }
  objects[place] = *object;
  object_count = place == object_count ? place + 1 : object_count;
  __atomic_fetch_add(&generation, object->kind == GROUP || object->kind == CHANNEL, __ATOMIC_RELAXED);
}

static void note_made(int file, uint32_t client, uint32_t parent, uint32_t handle, enum kind kind) {
  struct stat status;
  if (kind == NOTHING || !libc_file_status(file, &status))
    return;
  const struct object object = {kind, false, file, status.st_dev, status.st_ino, client, parent, handle};
  claim_take(&lock);
  if (kind != CHANNEL || find(GROUP, client, parent) != NULL)
    add(&object);
  claim_release(&lock);
}

/* Removes all that is below an object, which goes with it. */
static void remove_below(uint32_t client, uint32_t handle) {
  for (uint32_t i = 0; i < object_count; i++) {
    struct object *object = &objects[i];
    bool is_it = object->client == client && object->handle == handle;
    if (object->kind == NOTHING || object->client != client || (!is_it && object->parent != handle))
      continue;
    uint32_t below = object->handle;
    __atomic_fetch_add(&generation, object->kind == GROUP || object->kind == CHANNEL, __ATOMIC_RELAXED);
    object->kind = NOTHING;
    if (!is_it)
      remove_below(client, below);
  }
}

static void note_freed(uint32_t client, uint32_t handle) {
  claim_take(&lock);
  remove_below(client, handle);
  claim_release(&lock);
}

void channels_note(int file, unsigned long request, const void *argument) {
  if (RM_REQUEST_TYPE(request) != RM_TYPE || argument == NULL)
    return;
  size_t size = RM_REQUEST_SIZE(request);
  if (RM_REQUEST_NUMBER(request) == RM_FREE && size == sizeof(struct rm_free)) {
    const struct rm_free *call = argument;
    if (call->status == RM_OK)
      note_freed(call->root, call->object);
  } else if (RM_REQUEST_NUMBER(request) == RM_ALLOC && size == sizeof(struct rm_alloc)) {
    const struct rm_alloc *call = argument;
    if (call->status == RM_OK)
      note_made(file, call->root, call->parent, call->object,
                kind_of(call->object_class, (const void *)(uintptr_t)call->parameters));
  } else if (RM_REQUEST_NUMBER(request) == RM_ALLOC && size == sizeof(struct rm_short_alloc)) {
    const struct rm_short_alloc *call = argument;
    if (call->status == RM_OK)
      note_made(file, call->root, call->parent, call->object,
                kind_of(call->object_class, (const void *)(uintptr_t)call->parameters));
  }
}

/* ---- who asks ---------------------------------------------------------------------------------------------------- */

/* A program may close every descriptor, and open its own under the same number. */
static bool has_its_file(const struct object *object) {
  struct stat status;
  return libc_file_status(object->file, &status) && status.st_dev == object->file_device &&
         status.st_ino == object->file_inode;
}

static void list(struct channels *gpu, uint32_t handles[], uint32_t *count, uint32_t most, uint32_t handle) {
  if (*count < most)
    handles[(*count)++] = handle;
  else
    gpu->is_in_reach = false;
}

static bool is_group_of(const struct object *object, const struct channels *gpu) {
  return object->kind == GROUP && object->client == gpu->client.handle && object->parent == gpu->device;
}

static bool is_channel_of(const struct object *object, const struct channels *gpu) {
  if (object->kind != CHANNEL || object->client != gpu->client.handle)
    return false;
  const struct object *group = find(GROUP, object->client, object->parent);
  return group != NULL && is_group_of(group, gpu);
}

static void add_channels(struct channels *gpu) {
  for (uint32_t i = 0; i < object_count; i++) {
    const struct object *object = &objects[i];
    if (is_group_of(object, gpu))
      list(gpu, gpu->groups, &gpu->group_count, CHANNELS_MOST_GROUPS, object->handle);
    else if (is_channel_of(object, gpu))
      list(gpu, gpu->channels, &gpu->channel_count, CHANNELS_MOST_CHANNELS, object->handle);
  }
}

bool channels_next(uint32_t *previous, struct channels *gpu) {
  claim_take(&lock);
  bool found = false;
  while (!found && *previous < object_count) {
    const struct object *subdevice = &objects[(*previous)++];
    if (subdevice->kind != SUBDEVICE)
      continue;
    *gpu = (struct channels){.client = {subdevice->file, subdevice->client},
                             .device = subdevice->parent,
                             .subdevice = subdevice->handle,
                             .has_file = has_its_file(subdevice)};
    gpu->is_in_reach = gpu->has_file && are_all_known;
    add_channels(gpu);
    found = gpu->channel_count > 0;
  }
  claim_release(&lock);
  return found;
}

void channels_forget(void) {
  lock = 0;
  objects = NULL; /* a thread that is not here may have been moving them */
  room = object_count = 0;
  are_all_known = true;
  generation++;
}

uint32_t channels_generation(void) {
  return __atomic_load_n(&generation, __ATOMIC_RELAXED);
}

/* ---- calls ------------------------------------------------------------------------------------------------------- */

/* NV2080_CTRL_CMD_FIFO_DISABLE_CHANNELS */
#define DISABLE_CHANNELS 0x2080110bu
struct disable_channels {
  uint8_t disable, padding[3];
  uint32_t count;
  uint8_t only_scheduling, rewind, padding2[6];
  uint64_t event;
  uint32_t clients[RM_MOST_CHANNELS], channels[RM_MOST_CHANNELS];
};
_Static_assert(sizeof(struct disable_channels) == 536, "layout");

#define SET_TIMESLICE 0xa06c0103u /* NVA06C_CTRL_CMD_SET_TIMESLICE */
#define GET_TIMESLICE 0xa06c0104u
#define GET_CONTEXT_ID 0xa06f0113u /* NVA06F_CTRL_CMD_GET_CONTEXT_ID */
#define GET_GID_INFO 0x2080014au   /* NV2080_CTRL_CMD_GPU_GET_GID_INFO: in ASCII */
#define GET_TIME 0x20800403u       /* NV2080_CTRL_CMD_TIMER_GET_TIME */

struct gid_info {
  uint32_t index, flags, length;
  uint8_t data[CHANNELS_UUID_BYTES];
};

/* Lists what is to be switched of the next channels. */
static void list_next(const struct channels *gpu, uint32_t *next, struct disable_channels *call) {
  claim_take(&lock);
  for (; *next < object_count && call->count < RM_MOST_CHANNELS; ++*next) {
    const struct object *object = &objects[*next];
    if (!is_channel_of(object, gpu) || object->is_off == call->disable)
      continue;
    call->clients[call->count] = object->client;
    call->channels[call->count++] = object->handle;
  }
  claim_release(&lock);
}

static void note_switched(const struct disable_channels *call) {
  claim_take(&lock);
  for (uint32_t i = 0; i < call->count; i++) {
    struct object *object = find(CHANNEL, call->clients[i], call->channels[i]);
    if (object != NULL)
      object->is_off = call->disable;
  }
  claim_release(&lock);
}

uint32_t channels_switch(const struct channels *gpu, bool off) {
  uint32_t next = 0;
  for (;;) {
    struct disable_channels call = {.disable = off};
    list_next(gpu, &next, &call);
    if (call.count == 0)
      return RM_OK;
    uint32_t status = rm_control(gpu->client, gpu->subdevice, DISABLE_CHANNELS, &call, sizeof call);
    if (status != RM_OK)
      return status;
    note_switched(&call);
  }
}

uint32_t channels_set_slice(const struct channels *gpu, uint64_t slice_us) {
  uint32_t status = RM_OK;
  for (uint32_t i = 0; i < gpu->group_count && status == RM_OK; i++)
    status = rm_control(gpu->client, gpu->groups[i], SET_TIMESLICE, &slice_us, sizeof slice_us);
  return status;
}

uint32_t channels_slice_us(const struct channels *gpu, uint64_t *slice_us) {
  return rm_control(gpu->client, gpu->groups[0], GET_TIMESLICE, slice_us, sizeof *slice_us);
}

uint32_t channels_ask_busy(const struct channels *gpu) {
  uint32_t status = RM_OK;
  for (uint32_t first = 0; first < gpu->channel_count && status == RM_OK; first += RM_MOST_CHANNELS)
    status = rm_ask_idle(gpu->client, gpu->device, &gpu->channels[first],
                         (uint32_t)min(gpu->channel_count - first, RM_MOST_CHANNELS));
  return status;
}

uint32_t channels_context_number(const struct channels *gpu, uint32_t channel, uint32_t *number) {
  return rm_control(gpu->client, channel, GET_CONTEXT_ID, number, sizeof *number);
}

uint32_t channels_uuid(const struct channels *gpu, char uuid[CHANNELS_UUID_BYTES]) {
  struct gid_info info = {0};
  uint32_t status = rm_control(gpu->client, gpu->subdevice, GET_GID_INFO, &info, sizeof info);
  memcpy(uuid, info.data, CHANNELS_UUID_BYTES);
  uuid[CHANNELS_UUID_BYTES - 1] = '\0';
  return status;
}

uint32_t channels_gpu_time(const struct channels *gpu, int64_t *time_ns) {
  return rm_control(gpu->client, gpu->subdevice, GET_TIME, time_ns, sizeof *time_ns);
}
