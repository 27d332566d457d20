#include "control_objects.h"

#include <stdio.h>
#include <string.h>

#include "groups.h"
#include "state_file.h"

#define INDEX_PARENT 1
#define INDEX_CLASS 2

static void log_wrong_client(uint32_t named) {
  char path[4096 + 16];
  snprintf(path, sizeof path, "%s.log", state_file_path());
  FILE *log = fopen(path, "ae");
  if (!log)
    return;
  fprintf(log, "no such client: %#x\n", named);
  fclose(log);
}

struct state_client *control_client_of(struct control_client own, uint32_t named) {
  if (named != own.handle)
    log_wrong_client(named);
  if (named != own.handle || !state_owner_is_live(own.owner))
    return NULL;
  struct state_client *client = &state_process(state_slot_of(own.owner))->client;
  return client->handle == own.handle ? client : NULL;
}

unsigned control_row_of(const _Atomic uint32_t handles[SIM_MAX_DEVICES], uint32_t handle) {
  unsigned row = 0;
  while (row < SIM_MAX_DEVICES && (handle == 0 || handles[row] != handle))
    row++;
  return row;
}

enum control_status control_find_subdevice(struct control_client own, const struct control_control *call,
                                           unsigned *device_row) {
  const struct state_client *client = control_client_of(own, call->client);
  if (!client)
    return STATUS_INVALID_CLIENT;
  *device_row = control_row_of(client->subdevices, call->object);
  return *device_row < SIM_MAX_DEVICES ? STATUS_OK : STATUS_NOT_FOUND;
}

enum control_status control_find_group(struct control_client own, const struct control_control *call, unsigned *row) {
  if (!control_client_of(own, call->client))
    return STATUS_INVALID_CLIENT;
  *row = group_find(own.owner, call->object);
  return *row != GROUP_NONE ? STATUS_OK : STATUS_NOT_FOUND;
}

struct object {
  uint32_t handle, parent, class; /* class 0: it is not there */
};

static void look_for_device(const struct state_client *client, struct object *object) {
  for (unsigned row = 0; row < SIM_MAX_DEVICES; row++) {
    if (client->devices[row] == object->handle)
      *object = (struct object){object->handle, client->handle, CLASS_DEVICE};
    else if (client->subdevices[row] == object->handle)
      *object = (struct object){object->handle, client->devices[row], CLASS_SUBDEVICE};
  }
}

static void look_at_group(unsigned row, struct state_group *group, void *argument) {
  struct object *object = argument;
  uint32_t handle = atomic_load(&group->handle);
  (void)row;
  if (handle == object->handle)
    *object = (struct object){handle, atomic_load(&group->parent), CLASS_GROUP};
  else if (group_find_channel(group, object->handle) < STATE_GROUP_CHANNELS)
    *object = (struct object){object->handle, handle, CLASS_CHANNEL};
}

struct handle_info {
  uint32_t handle, index;
  uint64_t result;
};

/* Asked of the client itself. */
enum control_status control_handle_info(struct control_client own, const struct control_control *call) {
  struct handle_info info;
  const struct state_client *client = control_client_of(own, call->client);
  if (!client)
    return STATUS_INVALID_CLIENT;
  if (call->object != own.handle)
    return STATUS_NOT_FOUND;
  if (call->size != sizeof info || !call->parameters)
    return STATUS_INVALID_ARGUMENT;
  memcpy(&info, (const void *)(uintptr_t)call->parameters, sizeof info);
  struct object object = {.handle = info.handle};
  if (info.handle == own.handle)
    object.class = CLASS_CLIENT;
  else if (info.handle)
    look_for_device(client, &object);
  if (info.handle && !object.class)
    groups_visit(own.owner, look_at_group, &object);
  if (!object.class)
    return STATUS_NOT_FOUND;
  if (info.index != INDEX_PARENT && info.index != INDEX_CLASS)
    return STATUS_INVALID_ARGUMENT;
  info.result = info.index == INDEX_PARENT ? object.parent : object.class;
  memcpy((void *)(uintptr_t)call->parameters, &info, sizeof info);
  return STATUS_OK;
}
