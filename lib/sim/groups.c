#include "groups.h"

#include "timeline.h"

#define COMPUTE_SLICE_NS (2048 * NS_PER_US) /* a card's defaults */
#define COPY_SLICE_NS (1024 * NS_PER_US)
#define PAGE 4096
#define NONE UINT32_MAX /* before the first row */

static bool take_room(size_t start, size_t size) {
  if (!state_make_room(start, size))
    return false;
  for (size_t at = 0; at < size; at += PAGE) /* others may write there meanwhile */
    __atomic_fetch_or((char *)state_mapped() + start + at, 0, __ATOMIC_RELAXED);
  return true;
}

/* All pages of the queue are touched now, and of the device's records, so that no launch waits for the disk. */
static bool make_room(unsigned row, unsigned device_row) {
  return take_room(offsetof(struct state, queues[row]), sizeof(struct state_piece) * STATE_QUEUE) &&
         take_room(offsetof(struct state, records[device_row]), sizeof(uint64_t) * STATE_RECORDS);
}

/* A row that is free, or whose process has died. */
static unsigned claim(uint64_t owner, unsigned row, unsigned end) {
  for (; row < end; row++) {
    uint64_t before = atomic_load(&group_at(row)->owner);
    if ((!before || !state_owner_is_live(before)) &&
        atomic_compare_exchange_strong(&group_at(row)->owner, &before, owner))
      return row;
  }
  return GROUP_NONE;
}

/* The compute groups of an MPS server's clients are one on a card for each device. Returns the next one behind a row,
 * STATE_MAX_QUEUES at the end. */
static unsigned next_of_server(unsigned row, unsigned behind) {
  uint64_t leader = row < STATE_MAX_QUEUES ? atomic_load(&group_at(row)->leader) : 0;
  unsigned other = behind + 1;
  while (other < STATE_MAX_QUEUES &&
         (leader == 0 || other == row || atomic_load(&group_at(other)->leader) != leader ||
          !atomic_load(&group_at(other)->handle) || !state_owner_is_live(atomic_load(&group_at(other)->owner))))
    other++;
  return other;
}

static bool are_on_one_device(unsigned row, unsigned other) {
  return atomic_load(&group_at(row)->device_row) == atomic_load(&group_at(other)->device_row);
}

static uint64_t slice_among(unsigned row) {
  for (unsigned other = next_of_server(row, NONE); other < STATE_MAX_QUEUES; other = next_of_server(row, other))
    if (are_on_one_device(row, other))
      return atomic_load(&group_at(other)->slice_ns);
  return COMPUTE_SLICE_NS;
}

void group_set_slice(unsigned row, uint64_t slice_ns) {
  atomic_store(&group_at(row)->slice_ns, slice_ns);
  for (unsigned other = next_of_server(row, NONE); other < STATE_MAX_QUEUES; other = next_of_server(row, other))
    if (are_on_one_device(row, other))
      atomic_store(&group_at(other)->slice_ns, slice_ns);
}

/* The handle comes last: with it the group is found. */
unsigned group_new(uint64_t owner, uint64_t leader, enum group_engine engine, unsigned device_row, uint32_t parent,
                   uint32_t handle) {
  bool computes = engine == ENGINE_COMPUTE;
  unsigned row = claim(owner, computes ? 0 : STATE_MAX_QUEUES, computes ? STATE_MAX_QUEUES : STATE_MAX_GROUPS);
  if (row == GROUP_NONE)
    return GROUP_NONE;
  struct state_group *group = group_at(row);
  atomic_store(&group->handle, 0);
  for (unsigned i = 0; i < STATE_GROUP_CHANNELS; i++)
    atomic_store(&group->channels[i], 0);
  if (computes && !make_room(row, device_row)) {
    atomic_store(&group->owner, 0);
    return GROUP_NONE;
  }
  if (computes)
    timeline_drop(row); /* left by its last owner */
  atomic_store(&group->spinning, 0);
  atomic_store(&group->copies_of, 0);
  atomic_store(&group->device_row, device_row);
  atomic_store(&group->leader, leader);
  atomic_store(&group->slice_ns, computes ? slice_among(row) : COPY_SLICE_NS);
  atomic_store(&group->parent, parent);
  atomic_store(&group->handle, handle);
  return row;
}

/* ---- off and on -------------------------------------------------------------------------------------------------- */

bool group_is_busy(struct schedule *schedule, unsigned row) {
  const struct schedule_group *entry = row < STATE_MAX_QUEUES ? schedule_find(schedule, row) : NULL;
  return atomic_load(&group_at(row)->spinning) || (entry && entry->passed < entry->queued);
}

#define COUNT_BITS 8
_Static_assert(64 / COUNT_BITS == STATE_GROUP_CHANNELS, "a count for each channel");

/* How often its channels are off, which is in the entry of the group with the queue; NULL: it has none. */
static uint64_t *counts_of(struct schedule *schedule, unsigned row, bool make) {
  bool computes = row < STATE_MAX_QUEUES;
  unsigned of = computes ? row + 1 : atomic_load(&group_at(row)->copies_of);
  struct schedule_group *entry = of == 0 ? NULL
                                 : make  ? schedule_get(schedule, of - 1)
                                         : schedule_find(schedule, of - 1);
  return entry == NULL ? NULL : computes ? &entry->off : &entry->copies_off;
}

/* One more, or one less, unless there are as many, or as few, as can be. */
static uint64_t counted(uint64_t counts, unsigned place, bool off) {
  uint64_t one = 1ULL << COUNT_BITS * place, most = UINT8_MAX * one;
  return (counts & most) == (off ? most : 0) ? counts : off ? counts + one : counts - one;
}

static void leave_device(struct schedule *schedule, unsigned row) {
  if (group_is_busy(schedule, row)) /* an idle one stays where it is */
    schedule_unload(schedule, row);
}

void group_turn(struct schedule *schedule, unsigned row, unsigned channels, bool off) {
  uint64_t *counts = counts_of(schedule, row, off);
  for (unsigned place = 0; counts && place < STATE_GROUP_CHANNELS; place++)
    if (channels & 1U << place)
      *counts = counted(*counts, place, off);
  if (!off || row >= STATE_MAX_QUEUES)
    return;
  leave_device(schedule, row);
  for (unsigned other = next_of_server(row, NONE); other < STATE_MAX_QUEUES; other = next_of_server(row, other))
    if (are_on_one_device(row, other))
      leave_device(schedule, other);
}

struct freed {
  unsigned row;
  uint64_t counts;
};

static void forget(struct schedule *schedule, void *argument) {
  const struct freed *freed = argument;
  uint64_t *counts = counts_of(schedule, freed->row, false);
  if (counts)
    *counts &= ~freed->counts;
}

static void forget_off(unsigned row, uint64_t counts) {
  struct freed freed = {row, counts};
  timeline_do(forget, &freed);
}

/* ---- channels ---------------------------------------------------------------------------------------------------- */

bool group_add_channel(unsigned row, uint32_t handle) {
  for (unsigned i = 0; i < STATE_GROUP_CHANNELS; i++) {
    uint32_t none = 0;
    if (atomic_compare_exchange_strong(&group_at(row)->channels[i], &none, handle))
      return true;
  }
  return false;
}

unsigned group_find_channel(const struct state_group *group, uint32_t handle) {
  unsigned place = 0;
  while (place < STATE_GROUP_CHANNELS && (handle == 0 || atomic_load(&group->channels[place]) != handle))
    place++;
  return place;
}

/* Whoever switches it at the same time finds that the schedule has changed, and looks for it again. */
bool group_remove_channel(unsigned row, uint32_t handle) {
  unsigned place = group_find_channel(group_at(row), handle);
  if (place == STATE_GROUP_CHANNELS)
    return false;
  atomic_store(&group_at(row)->channels[place], 0);
  forget_off(row, (uint64_t)UINT8_MAX << COUNT_BITS * place);
  return true;
}

/* ---- rows -------------------------------------------------------------------------------------------------------- */

static void leave_without_copies(unsigned row, struct state_group *group, void *gone) {
  (void)row;
  uint32_t copies_of = *(unsigned *)gone + 1;
  atomic_compare_exchange_strong(&group->copies_of, &copies_of, 0);
}

void group_delete(unsigned row) {
  uint64_t owner = atomic_load(&group_at(row)->owner);
  atomic_store(&group_at(row)->handle, 0);
  if (row < STATE_MAX_QUEUES) {
    groups_visit(owner, leave_without_copies, &row);
    timeline_drop(row);
  } else {
    forget_off(row, UINT64_MAX);
  }
  atomic_store(&group_at(row)->owner, 0);
}

void groups_visit(uint64_t owner, group_visitor visit, void *argument) {
  for (unsigned row = 0; row < STATE_MAX_GROUPS; row++)
    if (atomic_load(&group_at(row)->owner) == owner && atomic_load(&group_at(row)->handle))
      visit(row, group_at(row), argument);
}

struct search {
  uint32_t handle, copies_of;
  unsigned found;
};

static void compare(unsigned row, struct state_group *group, void *argument) {
  struct search *search = argument;
  if (search->handle ? atomic_load(&group->handle) == search->handle
                     : atomic_load(&group->copies_of) == search->copies_of)
    search->found = row;
}

unsigned group_find(uint64_t owner, uint32_t handle) {
  struct search search = {.handle = handle, .found = GROUP_NONE};
  if (handle)
    groups_visit(owner, compare, &search);
  return search.found;
}

unsigned group_of_copies(unsigned row) {
  struct search search = {.copies_of = row + 1, .found = GROUP_NONE};
  groups_visit(atomic_load(&group_at(row)->owner), compare, &search);
  return search.found;
}

/* ---- other devices ----------------------------------------------------------------------------------------------- */

struct move {
  struct schedule_group off[STATE_MAX_QUEUES]; /* the part of entries that has to be kept */
  unsigned count;
};

static void take_out(struct schedule *schedule, void *argument) {
  struct move *move = argument;
  move->count = 0;
  for (unsigned place = schedule->group_count; place > 0; place--) {
    struct schedule_group entry = schedule->groups[place - 1];
    if (entry.owner != state_own_owner())
      continue;
    move->off[move->count++] = entry;
    schedule_remove(schedule, entry.row);
  }
}

static void put_back(struct schedule *schedule, void *argument) {
  const struct move *move = argument;
  for (unsigned i = 0; i < move->count; i++) {
    struct schedule_group *entry = schedule_get(schedule, move->off[i].row);
    entry->off = move->off[i].off;
    entry->copies_off = move->off[i].copies_off;
  }
}

static void move_row(unsigned row, struct state_group *group, void *rows) {
  (void)row;
  atomic_store(&group->device_row, ((const unsigned *)rows)[atomic_load(&group->device_row)]);
}

void groups_move(const unsigned rows[SIM_MAX_DEVICES]) {
  static struct move move;
  timeline_do(take_out, &move);
  groups_visit(state_own_owner(), move_row, (void *)rows);
  timeline_do(put_back, &move);
  struct state_client *client = &state_process(state_own_slot())->client;
  uint32_t devices[SIM_MAX_DEVICES], subdevices[SIM_MAX_DEVICES];
  for (unsigned row = 0; row < SIM_MAX_DEVICES; row++) {
    devices[row] = atomic_load(&client->devices[row]);
    subdevices[row] = atomic_load(&client->subdevices[row]);
  }
  for (unsigned row = 0; row < SIM_MAX_DEVICES; row++) {
    atomic_store(&client->devices[rows[row]], devices[row]);
    atomic_store(&client->subdevices[rows[row]], subdevices[row]);
  }
}
