#include "control_answers.h"

#include <stdio.h>
#include <string.h>

#include "control_objects.h"
#include "control_records.h"
#include "control_switches.h"
#include "groups.h"
#include "mps.h"
#include "pieces.h"

/* ---- allocations ------------------------------------------------------------------------------------------------- */

static enum control_status alloc_device(struct state_client *client, const struct control_alloc *call) {
  struct device_parameters parameters;
  if (call->size < sizeof parameters || !call->parameters)
    return STATUS_INVALID_ARGUMENT;
  memcpy(&parameters, (const void *)(uintptr_t)call->parameters, sizeof parameters);
  if (parameters.device_row >= SIM_MAX_DEVICES || client->devices[parameters.device_row])
    return STATUS_INVALID_ARGUMENT;
  client->devices[parameters.device_row] = call->handle;
  return STATUS_OK;
}

static enum control_status alloc_subdevice(struct state_client *client, const struct control_alloc *call) {
  unsigned row = control_row_of(client->devices, call->parent);
  if (row == SIM_MAX_DEVICES)
    return STATUS_NOT_FOUND;
  if (client->subdevices[row])
    return STATUS_INVALID_ARGUMENT;
  client->subdevices[row] = call->handle;
  return STATUS_OK;
}

static enum control_status alloc_group(uint64_t owner, struct state_client *client, const struct control_alloc *call) {
  struct group_parameters parameters;
  unsigned device_row = control_row_of(client->devices, call->parent);
  if (device_row == SIM_MAX_DEVICES)
    return STATUS_NOT_FOUND;
  if (call->size < sizeof parameters || !call->parameters)
    return STATUS_INVALID_ARGUMENT;
  memcpy(&parameters, (const void *)(uintptr_t)call->parameters, sizeof parameters);
  if (parameters.engine_type != ENGINE_COMPUTE && parameters.engine_type != ENGINE_COPY)
    return STATUS_INVALID_ARGUMENT;
  unsigned row = group_new(owner, owner == state_own_owner() ? mps_leader() : 0, parameters.engine_type, device_row,
                           call->parent, call->handle);
  if (row == GROUP_NONE)
    return STATUS_INSUFFICIENT_RESOURCES;
  unsigned copies_of = group_find(owner, parameters.copies_of);
  if (parameters.engine_type == ENGINE_COPY && copies_of < STATE_MAX_QUEUES)
    group_at(row)->copies_of = copies_of + 1;
  return STATUS_OK;
}

static enum control_status alloc_channel(uint64_t owner, const struct control_alloc *call) {
  unsigned row = group_find(owner, call->parent);
  if (row == GROUP_NONE)
    return STATUS_NOT_FOUND;
  return group_add_channel(row, call->handle) ? STATUS_OK : STATUS_INSUFFICIENT_RESOURCES;
}

enum control_status answer_alloc(struct control_client own, struct control_alloc *call) {
  if (call->class == CLASS_CLIENT && !call->handle)
    call->handle = own.handle;
  if (call->class == CLASS_CLIENT && call->handle == own.handle && state_owner_is_live(own.owner)) {
    atomic_store(&state_process(state_slot_of(own.owner))->client.handle, own.handle);
    return STATUS_OK;
  }
  struct state_client *client = control_client_of(own, call->client);
  if (!client)
    return STATUS_INVALID_CLIENT;
  if (!call->handle)
    return STATUS_INVALID_ARGUMENT;
  switch (call->class) {
  case CLASS_DEVICE:
    return alloc_device(client, call);
  case CLASS_SUBDEVICE:
    return alloc_subdevice(client, call);
  case CLASS_GROUP:
    return alloc_group(own.owner, client, call);
  case CLASS_CHANNEL:
    return alloc_channel(own.owner, call);
  case CLASS_MEMORY:
  case CLASS_EVENT_BUFFER:
    return records_alloc(own, call);
  default:
    return STATUS_INVALID_CLASS;
  }
}

/* ---- frees ------------------------------------------------------------------------------------------------------- */

struct removal {
  uint32_t handle; /* a channel's, a group's or a device's */
  bool found;
};

static void free_of_group(unsigned row, struct state_group *group, void *argument) {
  struct removal *removal = argument;
  if (atomic_load(&group->handle) == removal->handle || atomic_load(&group->parent) == removal->handle) {
    removal->found = true;
    group_delete(row);
  } else {
    removal->found |= group_remove_channel(row, removal->handle);
  }
}

enum control_status answer_free(struct control_client own, const struct control_free *call) {
  struct state_client *client = control_client_of(own, call->client);
  struct removal removal = {.handle = call->handle};
  if (!client)
    return STATUS_INVALID_CLIENT;
  if (!call->handle)
    return STATUS_NOT_FOUND;
  if (records_free(own, call->handle))
    return STATUS_OK;
  groups_visit(own.owner, free_of_group, &removal);
  unsigned device_row = control_row_of(client->devices, call->handle);
  unsigned subdevice_row = control_row_of(client->subdevices, call->handle);
  if (device_row < SIM_MAX_DEVICES)
    client->devices[device_row] = client->subdevices[device_row] = 0;
  if (subdevice_row < SIM_MAX_DEVICES)
    client->subdevices[subdevice_row] = 0;
  bool found = removal.found || device_row < SIM_MAX_DEVICES || subdevice_row < SIM_MAX_DEVICES;
  return found ? STATUS_OK : STATUS_NOT_FOUND;
}

/* ---- controls ---------------------------------------------------------------------------------------------------- */

#define FIRST_ID 0x100 /* a GPU's id is its row, and this more */
#define NO_ID 0xffffffff
#define MOST_IDS 32

static enum control_status get_attached_ids(struct control_client own, const struct control_control *call) {
  uint32_t ids[MOST_IDS];
  if (!control_client_of(own, call->client))
    return STATUS_INVALID_CLIENT;
  if (call->size != sizeof ids || !call->parameters)
    return STATUS_INVALID_ARGUMENT;
  for (unsigned device = 0; device < MOST_IDS; device++)
    ids[device] = device < sim_config.device_count ? FIRST_ID + state_row(device) : NO_ID;
  memcpy((void *)(uintptr_t)call->parameters, ids, sizeof ids);
  return STATUS_OK;
}

struct id_info {
  uint32_t id, flags, device_row, others[5];
};

static enum control_status get_id_info(struct control_client own, const struct control_control *call) {
  struct id_info info;
  if (!control_client_of(own, call->client))
    return STATUS_INVALID_CLIENT;
  if (call->size != sizeof info || !call->parameters)
    return STATUS_INVALID_ARGUMENT;
  memcpy(&info, (const void *)(uintptr_t)call->parameters, sizeof info);
  if (info.id < FIRST_ID || info.id >= FIRST_ID + SIM_MAX_DEVICES)
    return STATUS_INVALID_ARGUMENT;
  info = (struct id_info){.id = info.id, .device_row = info.id - FIRST_ID};
  memcpy((void *)(uintptr_t)call->parameters, &info, sizeof info);
  return STATUS_OK;
}

struct gid_info {
  uint32_t index, flags, length;
  char data[256];
};

static enum control_status get_gid_info(struct control_client own, const struct control_control *call) {
  struct gid_info info = {0};
  unsigned device_row;
  FORWARD_IF_ERROR(control_find_subdevice(own, call, &device_row));
  if (call->size != sizeof info || !call->parameters)
    return STATUS_INVALID_ARGUMENT;
  info.length = (uint32_t)snprintf(info.data, sizeof info.data, "%s", state_mapped()->devices[device_row].uuid) + 1;
  memcpy((void *)(uintptr_t)call->parameters, &info, sizeof info);
  return STATUS_OK;
}

static enum control_status get_time(struct control_client own, const struct control_control *call) {
  uint64_t now_ns = clock_ns();
  unsigned device_row;
  FORWARD_IF_ERROR(control_find_subdevice(own, call, &device_row));
  if (call->size != sizeof now_ns || !call->parameters)
    return STATUS_INVALID_ARGUMENT;
  memcpy((void *)(uintptr_t)call->parameters, &now_ns, sizeof now_ns);
  return STATUS_OK;
}

enum control_status answer_control(struct control_client own, const struct control_control *call) {
  if (!call->size && call->parameters)
    return STATUS_INVALID_ARGUMENT;
  switch (call->command) {
  case COMMAND_GET_ATTACHED_IDS:
    return get_attached_ids(own, call);
  case COMMAND_GET_ID_INFO:
    return get_id_info(own, call);
  case COMMAND_GET_HANDLE_INFO:
    return control_handle_info(own, call);
  case COMMAND_DISABLE_CHANNELS:
    return control_switch_channels(own, call);
  case COMMAND_SET_TIMESLICE:
  case COMMAND_GET_TIMESLICE:
    return control_timeslice(own, call);
  case COMMAND_PREEMPT:
    return control_preempt(own, call);
  case COMMAND_GET_CONTEXT_ID:
    return control_context_id(own, call);
  case COMMAND_GET_GID_INFO:
    return get_gid_info(own, call);
  case COMMAND_GET_TIME:
    return get_time(own, call);
  case COMMAND_BIND_RECORDS:
  case COMMAND_ENABLE_RECORDS:
  case COMMAND_FLUSH_RECORDS:
    return records_control(own, call);
  default:
    return STATUS_NOT_SUPPORTED;
  }
}
