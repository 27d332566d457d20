#include "groups.h"

#include <stddef.h>

#include "timeline.h"

#define COMPUTE_SLICE_NS (2048 * NS_PER_US) /* a card's defaults */
#define COPY_SLICE_NS (1024 * NS_PER_US)
#define PAGE 4096

static struct state_group *group_at(unsigned row) {
  return &state_mapped()->groups[row];
}

static bool is_used(unsigned row) {
  return group_at(row)->engine_type != ENGINE_NONE;
}

/* All pages of the queue are touched now, so that no launch waits for the disk. */
static bool make_room(unsigned row) {
  volatile char *queue = (volatile char *)state_mapped()->queues[row];
  size_t size = sizeof state_mapped()->queues[row];
  if (!state_make_room(offsetof(struct state, queues[row]), size))
    return false;
  for (size_t at = 0; at < size; at += PAGE)
    queue[at] = queue[at];
  return true;
}

/* The counters of the row go on, since times name pieces by them. */
unsigned group_new(unsigned slot, unsigned device_row, enum state_engine_type type) {
  unsigned row = 0;
  while (row < STATE_MAX_GROUPS && is_used(row))
    row++;
  if (row == STATE_MAX_GROUPS || (type == ENGINE_COMPUTE && !make_room(row)))
    return GROUP_NONE;
  struct state_group *group = group_at(row);
  *group = (struct state_group){
      .device_row = device_row,
      .slot = slot,
      .slice_ns = type == ENGINE_COMPUTE ? COMPUTE_SLICE_NS : COPY_SLICE_NS,
      .queued = group->queued,
      .passed = group->queued,
  };
  group->engine_type = type;
  return row;
}

void group_delete(unsigned row) {
  timeline_drop(row);
  group_at(row)->engine_type = ENGINE_NONE;
  for (unsigned i = 0; i < STATE_MAX_GROUPS; i++)
    if (group_at(i)->copies == row + 1)
      group_at(i)->copies = 0;
}

struct search {
  uint32_t handle;
  unsigned found;
};

static void compare(unsigned row, struct state_group *group, void *argument) {
  struct search *search = argument;
  if (group->handle == search->handle)
    search->found = row;
}

unsigned group_find(unsigned slot, uint32_t handle) {
  struct search search = {handle, GROUP_NONE};
  groups_visit(slot, compare, &search);
  return search.found;
}

void groups_visit(unsigned slot, group_visitor visit, void *argument) {
  for (unsigned row = 0; row < STATE_MAX_GROUPS; row++)
    if (is_used(row) && group_at(row)->slot == slot)
      visit(row, group_at(row), argument);
}

static void move(unsigned row, struct state_group *group, void *rows) {
  timeline_drop(row);
  group->device_row = ((const unsigned *)rows)[group->device_row];
}

void groups_move(unsigned slot, const unsigned rows[SIM_MAX_DEVICES]) {
  struct state_client *client = &state_process(slot)->client, before = *client;
  groups_visit(slot, move, (void *)rows);
  for (unsigned row = 0; row < SIM_MAX_DEVICES; row++) {
    client->devices[rows[row]] = before.devices[row];
    client->subdevices[rows[row]] = before.subdevices[row];
  }
}

bool group_is_busy(const struct state_group *group) {
  return group->spinning || group->passed < group->queued;
}

void groups_forget_if_dead(unsigned row) {
  if (is_used(row) && !state_slot_is_live(group_at(row)->slot))
    group_delete(row);
}

void groups_join(void) {
  for (unsigned row = 0; row < STATE_MAX_GROUPS; row++)
    if (is_used(row) && group_at(row)->slot == state_own_slot())
      group_delete(row);
    else
      groups_forget_if_dead(row);
}
