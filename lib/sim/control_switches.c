#include "control_switches.h"

#include <string.h>

#include "config.h"
#include "control_objects.h"
#include "groups.h"
#include "timeline.h"

#define MAX_LISTED 64 /* channels in a call */
#define BEHAVIOUR_MASK 0xf
#define BEHAVIOUR_IDLE 2
#define BEHAVIOUR_FORCE_BUSY_CHECK 3

/* Durations of the calls on a card. */
#define OFF_IDLE_NS (250 * NS_PER_US)
#define ON_NS (170 * NS_PER_US)
#define TIMESLICE_NS (280 * NS_PER_US)
#define BUSY_NS (250 * NS_PER_US)
#define LOOK_NS (150 * NS_PER_US) /* a shorter look finds all channels busy */

struct disable_parameters {
  uint8_t disable;
  uint32_t count;
  uint8_t only_disable_scheduling, rewind;
  uint64_t event;
  uint32_t clients[MAX_LISTED], channels[MAX_LISTED];
};

/* Channels that a call lists, and what is found of them in a schedule. */
struct listed {
  struct control_client own;
  const uint32_t *clients, *channels;
  unsigned count, found;
  unsigned device_row; /* SIM_MAX_DEVICES: any */
  bool is_busy;
  uint64_t queued; /* pieces, of all their groups */
  struct schedule *schedule;
  struct {
    unsigned row, channels; /* a bit for each place */
  } groups[MAX_LISTED];
  unsigned group_count;
};

static void visit_listed(unsigned row, struct state_group *group, void *argument) {
  struct listed *listed = argument;
  unsigned channels = 0;
  if (listed->device_row != SIM_MAX_DEVICES && atomic_load(&group->device_row) != listed->device_row)
    return;
  for (unsigned i = 0; i < listed->count; i++) {
    unsigned place = group_find_channel(group, listed->channels[i]);
    if (place == STATE_GROUP_CHANNELS)
      continue;
    listed->found++;
    channels |= 1U << place;
  }
  if (!channels)
    return;
  listed->groups[listed->group_count].row = row;
  listed->groups[listed->group_count++].channels = channels;
  listed->is_busy |= group_is_busy(listed->schedule, row);
  listed->queued += atomic_load(&group->queued);
}

static void find_listed(struct schedule *schedule, void *argument) {
  struct listed *listed = argument;
  listed->schedule = schedule;
  listed->found = listed->group_count = 0;
  listed->queued = 0;
  listed->is_busy = false;
  groups_visit(listed->own.owner, visit_listed, listed);
}

/* All of them have to be the client's, or the whole call is refused. */
static bool are_all_found(const struct listed *listed) {
  for (unsigned i = 0; i < listed->count; i++)
    if (listed->clients[i] != listed->own.handle)
      return false;
  return listed->found == listed->count;
}

static enum control_status look_at(struct listed *listed) {
  timeline_do(find_listed, listed);
  return are_all_found(listed) ? STATUS_OK : STATUS_INVALID_CHANNEL;
}

/* ---- off and on -------------------------------------------------------------------------------------------------- */

static void turn(struct schedule *schedule, struct listed *listed, bool off) {
  find_listed(schedule, listed);
  for (unsigned i = 0; are_all_found(listed) && i < listed->group_count; i++)
    group_turn(schedule, listed->groups[i].row, listed->groups[i].channels, off);
}

static void turn_off(struct schedule *schedule, void *listed) {
  turn(schedule, listed, true);
}

static void turn_on(struct schedule *schedule, void *listed) {
  turn(schedule, listed, false);
}

enum control_status control_switch_channels(struct control_client own, const struct control_control *call) {
  struct disable_parameters parameters;
  unsigned device_row;
  if (call->size != sizeof parameters || !call->parameters)
    return STATUS_INVALID_ARGUMENT;
  memcpy(&parameters, (const void *)(uintptr_t)call->parameters, sizeof parameters);
  if (parameters.count == 0 || parameters.count > MAX_LISTED || parameters.event)
    return STATUS_INVALID_ARGUMENT;
  if (parameters.only_disable_scheduling || parameters.rewind)
    return STATUS_NOT_SUPPORTED;
  enum control_status status = control_find_subdevice(own, call, &device_row);
  if (status != STATUS_OK)
    return status;
  struct listed listed = {.own = own,
                          .clients = parameters.clients,
                          .channels = parameters.channels,
                          .count = parameters.count,
                          .device_row = device_row};
  status = look_at(&listed);
  if (status != STATUS_OK)
    return status;
  clock_wait_until(clock_ns() + (!parameters.disable ? ON_NS
                                 : listed.is_busy    ? sim_config.channels_off_ns
                                                     : OFF_IDLE_NS));
  bool off = parameters.disable && sim_config.channels_stay_off;
  timeline_do(off ? turn_off : turn_on, &listed); /* some may have been freed meanwhile */
  return are_all_found(&listed) ? STATUS_OK : STATUS_INVALID_CHANNEL;
}

/* Idle are channels that are so for all of the time that the answer takes, where it may look for long enough. */
enum control_status answer_idle(struct control_client own, const struct control_idle *call) {
  uint32_t behaviour = call->flags & BEHAVIOUR_MASK;
  if (call->count == 0 || call->count > MAX_LISTED || !call->clients || !call->channels)
    return STATUS_INVALID_ARGUMENT;
  if (behaviour != BEHAVIOUR_IDLE && behaviour != BEHAVIOUR_FORCE_BUSY_CHECK)
    return STATUS_NOT_SUPPORTED;
  if (!control_client_of(own, call->client))
    return STATUS_INVALID_CLIENT;
  struct listed listed = {.own = own,
                          .clients = (const uint32_t *)(uintptr_t)call->clients,
                          .channels = (const uint32_t *)(uintptr_t)call->channels,
                          .count = call->count,
                          .device_row = SIM_MAX_DEVICES};
  enum control_status status = look_at(&listed);
  if (status != STATUS_OK)
    return status;
  bool was_busy = listed.is_busy || call->timeout_us * NS_PER_US < LOOK_NS;
  uint64_t queued = listed.queued;
  clock_wait_until(clock_ns() + BUSY_NS);
  status = look_at(&listed);
  if (status != STATUS_OK || behaviour == BEHAVIOUR_IDLE)
    return status;
  return was_busy || listed.is_busy || listed.queued != queued ? STATUS_BUSY : STATUS_OK;
}

/* ---- groups ------------------------------------------------------------------------------------------------------ */

enum control_status control_timeslice(struct control_client own, const struct control_control *call) {
  bool sets = call->command == COMMAND_SET_TIMESLICE;
  uint64_t slice_us;
  unsigned row;
  if (call->size != sizeof slice_us || !call->parameters)
    return STATUS_INVALID_ARGUMENT;
  memcpy(&slice_us, (const void *)(uintptr_t)call->parameters, sizeof slice_us);
  if (sets && (slice_us == 0 || slice_us > NS_PER_S))
    return STATUS_INVALID_ARGUMENT;
  clock_wait_until(clock_ns() + TIMESLICE_NS);
  FORWARD_IF_ERROR(control_find_group(own, call, &row));
  if (sets)
    group_set_slice(row, slice_us * NS_PER_US);
  slice_us = atomic_load(&group_at(row)->slice_ns) / NS_PER_US;
  memcpy((void *)(uintptr_t)call->parameters, &slice_us, sizeof slice_us);
  return STATUS_OK;
}

static void preempt(struct schedule *schedule, void *row) {
  schedule_preempt(schedule, *(const unsigned *)row);
}

enum control_status control_preempt(struct control_client own, const struct control_control *call) {
  unsigned row;
  enum control_status status = control_find_group(own, call, &row);
  if (status == STATUS_OK)
    timeline_do(preempt, &row);
  return status;
}

struct channel_search {
  uint32_t handle;
  unsigned row;
};

static void find_channel(unsigned row, struct state_group *group, void *argument) {
  struct channel_search *search = argument;
  if (group_find_channel(group, search->handle) < STATE_GROUP_CHANNELS)
    search->row = row;
}

/* The number by which records name the context of a channel. */
enum control_status control_context_id(struct control_client own, const struct control_control *call) {
  struct channel_search search = {call->object, GROUP_NONE};
  uint32_t number;
  if (!control_client_of(own, call->client))
    return STATUS_INVALID_CLIENT;
  if (call->size != sizeof number || !call->parameters)
    return STATUS_INVALID_ARGUMENT;
  groups_visit(own.owner, find_channel, &search);
  if (search.row >= STATE_MAX_QUEUES)
    return STATUS_NOT_FOUND;
  number = search.row + 1;
  memcpy((void *)(uintptr_t)call->parameters, &number, sizeof number);
  return STATUS_OK;
}
