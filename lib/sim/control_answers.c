#include "control_answers.h"

#include <string.h>

#include "groups.h"
#include "timeline.h"

#define MAX_LISTED 64 /* channels in a call */
#define COMMAND_DISABLE_CHANNELS 0x2080110b
#define COMMAND_SET_TIMESLICE 0xa06c0103
#define COMMAND_GET_TIMESLICE 0xa06c0104
#define COMMAND_PREEMPT 0xa06c0105
#define BEHAVIOUR_MASK 0xf
#define BEHAVIOUR_IDLE 2
#define BEHAVIOUR_FORCE_BUSY_CHECK 3

/* Durations of the calls on a card. */
#define OFF_IDLE_NS (250 * NS_PER_US)
#define OFF_RUNNING_NS (450 * NS_PER_US)
#define ON_NS (170 * NS_PER_US)
#define TIMESLICE_NS (280 * NS_PER_US)
#define BUSY_NS (250 * NS_PER_US)

struct disable_parameters {
  uint8_t disable;
  uint32_t count;
  uint8_t only_disable_scheduling, rewind;
  uint64_t event;
  uint32_t clients[MAX_LISTED], channels[MAX_LISTED];
};

/* NULL, where the client has ended, or the call names another one. */
static struct state_client *client_of(struct control_client own, uint32_t named) {
  if (named != own.handle || !state_slot_is_live(own.slot))
    return NULL;
  struct state_client *client = &state_process(own.slot)->client;
  return client->handle == own.handle ? client : NULL;
}

/* The row of the device with that handle in a list of a client's; SIM_MAX_DEVICES: none. */
static unsigned row_of(const uint32_t handles[SIM_MAX_DEVICES], uint32_t handle) {
  unsigned row = 0;
  while (row < SIM_MAX_DEVICES && (handle == 0 || handles[row] != handle))
    row++;
  return row;
}

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
  unsigned row = row_of(client->devices, call->parent);
  if (row == SIM_MAX_DEVICES)
    return STATUS_NOT_FOUND;
  if (client->subdevices[row])
    return STATUS_INVALID_ARGUMENT;
  client->subdevices[row] = call->handle;
  return STATUS_OK;
}

static enum control_status alloc_group(unsigned slot, struct state_client *client, const struct control_alloc *call) {
  struct group_parameters parameters;
  unsigned device_row = row_of(client->devices, call->parent);
  if (device_row == SIM_MAX_DEVICES)
    return STATUS_NOT_FOUND;
  if (call->size < sizeof parameters || !call->parameters)
    return STATUS_INVALID_ARGUMENT;
  memcpy(&parameters, (const void *)(uintptr_t)call->parameters, sizeof parameters);
  if (parameters.engine_type != ENGINE_COMPUTE && parameters.engine_type != ENGINE_COPY)
    return STATUS_INVALID_ARGUMENT;
  unsigned row = group_new(slot, device_row, parameters.engine_type);
  if (row == GROUP_NONE)
    return STATUS_INSUFFICIENT_RESOURCES;
  struct state *state = state_mapped();
  state->groups[row].parent = call->parent;
  state->groups[row].handle = call->handle;
  unsigned copies_of = group_find(slot, parameters.copies_of);
  if (parameters.engine_type == ENGINE_COPY && copies_of != GROUP_NONE)
    state->groups[copies_of].copies = row + 1;
  return STATUS_OK;
}

static enum control_status alloc_channel(unsigned slot, const struct control_alloc *call) {
  unsigned row = group_find(slot, call->parent);
  if (row == GROUP_NONE)
    return STATUS_NOT_FOUND;
  uint32_t *channels = state_mapped()->groups[row].channels;
  for (unsigned i = 0; i < STATE_GROUP_CHANNELS; i++)
    if (!channels[i]) {
      channels[i] = call->handle;
      return STATUS_OK;
    }
  return STATUS_INSUFFICIENT_RESOURCES;
}

static enum control_status alloc(struct control_client own, const struct control_alloc *call) {
  if (call->class == CLASS_CLIENT && call->handle == own.handle && state_slot_is_live(own.slot)) {
    state_process(own.slot)->client = (struct state_client){.handle = own.handle};
    return STATUS_OK;
  }
  struct state_client *client = client_of(own, call->client);
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
    return alloc_group(own.slot, client, call);
  case CLASS_CHANNEL:
    return alloc_channel(own.slot, call);
  default:
    return STATUS_INVALID_CLASS;
  }
}

enum control_status answer_alloc(struct control_client own, const struct control_alloc *call) {
  timeline_lock();
  enum control_status status = alloc(own, call);
  timeline_unlock();
  return status;
}

/* ---- frees ------------------------------------------------------------------------------------------------------- */

struct removal {
  uint32_t handle; /* of a channel, a group or a device */
  bool found;
};

static void free_of_group(unsigned row, struct state_group *group, void *argument) {
  struct removal *removal = argument;
  if (group->handle == removal->handle || group->parent == removal->handle) {
    removal->found = true;
    group_delete(row);
    return;
  }
  for (unsigned i = 0; i < STATE_GROUP_CHANNELS; i++)
    if (group->channels[i] == removal->handle) {
      removal->found = true;
      group->channels[i] = 0;
      group->off &= ~(1U << i);
    }
}

static enum control_status free_object(struct control_client own, const struct control_free *call) {
  struct state_client *client = client_of(own, call->client);
  struct removal removal = {.handle = call->handle};
  if (!client)
    return STATUS_INVALID_CLIENT;
  if (!call->handle)
    return STATUS_NOT_FOUND;
  groups_visit(own.slot, free_of_group, &removal);
  unsigned device_row = row_of(client->devices, call->handle);
  unsigned subdevice_row = row_of(client->subdevices, call->handle);
  if (device_row < SIM_MAX_DEVICES)
    client->devices[device_row] = client->subdevices[device_row] = 0;
  if (subdevice_row < SIM_MAX_DEVICES)
    client->subdevices[subdevice_row] = 0;
  bool found = removal.found || device_row < SIM_MAX_DEVICES || subdevice_row < SIM_MAX_DEVICES;
  return found ? STATUS_OK : STATUS_NOT_FOUND;
}

enum control_status answer_free(struct control_client own, const struct control_free *call) {
  timeline_lock();
  enum control_status status = free_object(own, call);
  timeline_unlock();
  return status;
}

/* ---- channels off and on ----------------------------------------------------------------------------------------- */

/* Channels that a call lists, and what is done with those that are found. */
struct listed {
  const uint32_t *clients, *channels;
  unsigned count, found;
  unsigned device_row; /* SIM_MAX_DEVICES: any */
  bool is_busy;
  uint64_t queued; /* pieces, of all their groups */
  bool set, off;
};

static void visit_listed(unsigned row, struct state_group *group, void *argument) {
  struct listed *listed = argument;
  bool any = false;
  (void)row;
  if (listed->device_row != SIM_MAX_DEVICES && group->device_row != listed->device_row)
    return;
  for (unsigned i = 0; i < STATE_GROUP_CHANNELS; i++)
    for (unsigned k = 0; group->channels[i] && k < listed->count; k++) {
      if (group->channels[i] != listed->channels[k])
        continue;
      any = true;
      listed->found++;
      if (listed->set)
        group->off = listed->off ? group->off | 1U << i : group->off & ~(1U << i);
    }
  if (!any)
    return;
  listed->is_busy |= group_is_busy(group);
  listed->queued += group->queued;
}

/* All of them have to be the client's, or the whole call is refused. */
static enum control_status look_at(struct control_client own, struct listed *listed) {
  listed->found = 0;
  listed->queued = 0;
  listed->is_busy = false;
  for (unsigned i = 0; i < listed->count; i++)
    if (listed->clients[i] != own.handle)
      return STATUS_INVALID_CHANNEL;
  groups_visit(own.slot, visit_listed, listed);
  return listed->found == listed->count ? STATUS_OK : STATUS_INVALID_CHANNEL;
}

static enum control_status find_subdevice(struct control_client own, const struct control_control *call,
                                          unsigned *device_row) {
  const struct state_client *client = client_of(own, call->client);
  if (!client)
    return STATUS_INVALID_CLIENT;
  *device_row = row_of(client->subdevices, call->object);
  return *device_row < SIM_MAX_DEVICES ? STATUS_OK : STATUS_NOT_FOUND;
}

static enum control_status look_at_channels(struct control_client own, const struct control_control *call,
                                            struct listed *listed) {
  timeline_lock();
  enum control_status status = find_subdevice(own, call, &listed->device_row);
  if (status == STATUS_OK)
    status = look_at(own, listed);
  timeline_unlock();
  return status;
}

static enum control_status switch_channels(struct control_client own, const struct control_control *call) {
  struct disable_parameters parameters;
  if (call->size != sizeof parameters || !call->parameters)
    return STATUS_INVALID_ARGUMENT;
  memcpy(&parameters, (const void *)(uintptr_t)call->parameters, sizeof parameters);
  if (parameters.count == 0 || parameters.count > MAX_LISTED || parameters.event)
    return STATUS_INVALID_ARGUMENT;
  if (parameters.only_disable_scheduling || parameters.rewind)
    return STATUS_NOT_SUPPORTED;
  struct listed listed = {parameters.clients, parameters.channels, .count = parameters.count};
  enum control_status status = look_at_channels(own, call, &listed);
  if (status != STATUS_OK)
    return status;
  clock_wait_until(clock_ns() + (!parameters.disable ? ON_NS : listed.is_busy ? OFF_RUNNING_NS : OFF_IDLE_NS));
  status = look_at_channels(own, call, &listed); /* one may have been freed meanwhile */
  if (status != STATUS_OK)
    return status;
  listed.set = true;
  listed.off = parameters.disable;
  return look_at_channels(own, call, &listed);
}

/* ---- groups ------------------------------------------------------------------------------------------------------ */

static enum control_status find_group(struct control_client own, const struct control_control *call, unsigned *row) {
  if (!client_of(own, call->client))
    return STATUS_INVALID_CLIENT;
  *row = call->object ? group_find(own.slot, call->object) : GROUP_NONE;
  return *row != GROUP_NONE ? STATUS_OK : STATUS_NOT_FOUND;
}

static enum control_status control_timeslice(struct control_client own, const struct control_control *call, bool set) {
  uint64_t slice_us;
  unsigned row;
  if (call->size != sizeof slice_us || !call->parameters)
    return STATUS_INVALID_ARGUMENT;
  memcpy(&slice_us, (const void *)(uintptr_t)call->parameters, sizeof slice_us);
  if (set && (slice_us == 0 || slice_us > NS_PER_S))
    return STATUS_INVALID_ARGUMENT;
  clock_wait_until(clock_ns() + TIMESLICE_NS);
  timeline_lock();
  enum control_status status = find_group(own, call, &row);
  if (status == STATUS_OK && set)
    state_mapped()->groups[row].slice_ns = slice_us * NS_PER_US;
  if (status == STATUS_OK)
    slice_us = state_mapped()->groups[row].slice_ns / NS_PER_US;
  timeline_unlock();
  if (status == STATUS_OK)
    memcpy((void *)(uintptr_t)call->parameters, &slice_us, sizeof slice_us);
  return status;
}

/* The device takes the next group, and this one again when its turn comes. */
static enum control_status preempt(struct control_client own, const struct control_control *call) {
  unsigned row;
  timeline_lock();
  enum control_status status = find_group(own, call, &row);
  if (status == STATUS_OK)
    timeline_preempt(row);
  timeline_unlock();
  return status;
}

enum control_status answer_control(struct control_client own, const struct control_control *call) {
  switch (call->command) {
  case COMMAND_DISABLE_CHANNELS:
    return switch_channels(own, call);
  case COMMAND_SET_TIMESLICE:
  case COMMAND_GET_TIMESLICE:
    return control_timeslice(own, call, call->command == COMMAND_SET_TIMESLICE);
  case COMMAND_PREEMPT:
    return preempt(own, call);
  default:
    return STATUS_NOT_SUPPORTED;
  }
}

static enum control_status look_at_busy(struct control_client own, const struct control_idle *call,
                                        struct listed *listed) {
  timeline_lock();
  enum control_status status = client_of(own, call->client) ? look_at(own, listed) : STATUS_INVALID_CLIENT;
  timeline_unlock();
  return status;
}

/* Idle are channels that are so for all of the time that the answer takes. */
enum control_status answer_idle(struct control_client own, const struct control_idle *call) {
  uint32_t behaviour = call->flags & BEHAVIOUR_MASK;
  if (call->count == 0 || call->count > MAX_LISTED || !call->clients || !call->channels)
    return STATUS_INVALID_ARGUMENT;
  if (behaviour != BEHAVIOUR_IDLE && behaviour != BEHAVIOUR_FORCE_BUSY_CHECK)
    return STATUS_NOT_SUPPORTED;
  struct listed listed = {(const uint32_t *)(uintptr_t)call->clients, (const uint32_t *)(uintptr_t)call->channels,
                          .count = call->count, .device_row = SIM_MAX_DEVICES};
  enum control_status status = look_at_busy(own, call, &listed);
  if (status != STATUS_OK)
    return status;
  bool was_busy = listed.is_busy;
  uint64_t queued = listed.queued;
  clock_wait_until(clock_ns() + BUSY_NS);
  status = look_at_busy(own, call, &listed);
  if (status != STATUS_OK || behaviour == BEHAVIOUR_IDLE)
    return status;
  return was_busy || listed.is_busy || listed.queued != queued ? STATUS_BUSY : STATUS_OK;
}
