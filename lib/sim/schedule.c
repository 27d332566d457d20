#include "schedule.h"

#include <string.h>

#include "pieces.h"

#define NEVER UINT64_MAX
#define LEAST_SLICE_NS NS_PER_US
#define MOST_EFFECTS (STATE_EFFECTS - 4 * SIM_MAX_DEVICES) /* each device has some more in a step that has begun */

/* ---- context switches -------------------------------------------------------------------------------------------- */

static void add_record(struct schedule *schedule, unsigned device_row, enum schedule_effect_kind kind, unsigned row) {
  uint64_t number = schedule->engines[device_row].records++;
  if (schedule->effect_count < STATE_EFFECTS)
    schedule->effects[schedule->effect_count++] =
        (struct schedule_effect){kind, (uint16_t)device_row, row, number, schedule->now_ns};
}

void schedule_unload(struct schedule *schedule, unsigned row) {
  unsigned device_row = 0;
  while (device_row < SIM_MAX_DEVICES && schedule->engines[device_row].loaded != row + 1)
    device_row++;
  if (device_row == SIM_MAX_DEVICES)
    return;
  add_record(schedule, device_row, EFFECT_LEFT, row);
  schedule->engines[device_row].loaded = 0;
}

/* The context of a group comes to the device once the one before has left it, which takes a while. */
static void load(struct schedule *schedule, const struct schedule_group *group) {
  struct schedule_engine *engine = &schedule->engines[group->device_row];
  if (engine->loaded == group->row + 1)
    return;
  if (engine->loaded)
    schedule_unload(schedule, (unsigned)engine->loaded - 1);
  if (engine->switch_left_ns)
    return;
  add_record(schedule, group->device_row, EFFECT_BEGUN, group->row);
  engine->loaded = group->row + 1;
}

/* ---- entries ----------------------------------------------------------------------------------------------------- */

/* The place at which a group of a device is, or would be inserted. */
static unsigned place_of(const struct schedule *schedule, unsigned device_row, unsigned row) {
  unsigned place = schedule->first[device_row];
  while (place < schedule->first[device_row + 1] && schedule->groups[place].row < row)
    place++;
  return place;
}

static unsigned find(const struct schedule *schedule, unsigned row) {
  unsigned device_row = atomic_load_explicit(&group_at(row)->device_row, memory_order_relaxed) % SIM_MAX_DEVICES;
  unsigned place = place_of(schedule, device_row, row);
  return place < schedule->first[device_row + 1] && schedule->groups[place].row == row ? place : STATE_MAX_QUEUES;
}

struct schedule_group *schedule_find(struct schedule *schedule, unsigned row) {
  unsigned place = find(schedule, row);
  return place < STATE_MAX_QUEUES ? &schedule->groups[place] : NULL;
}

static void insert(struct schedule *schedule, unsigned place, struct schedule_group entry) {
  struct schedule_group *at = &schedule->groups[place];
  memmove(at + 1, at, (schedule->group_count - place) * sizeof *at);
  *at = entry;
  schedule->group_count++;
  for (unsigned row = entry.device_row + 1U; row <= SIM_MAX_DEVICES; row++)
    schedule->first[row]++;
}

static void remove_at(struct schedule *schedule, unsigned place) {
  struct schedule_group *at = &schedule->groups[place];
  if (schedule->engines[at->device_row].current == at->row + 1)
    schedule->engines[at->device_row].current = 0;
  for (unsigned row = at->device_row + 1U; row <= SIM_MAX_DEVICES; row++)
    schedule->first[row]--;
  schedule->group_count--;
  memmove(at, at + 1, (schedule->group_count - place) * sizeof *at);
}

struct schedule_group *schedule_get(struct schedule *schedule, unsigned row) {
  struct schedule_group *entry = schedule_find(schedule, row);
  if (entry)
    return entry;
  struct state_group *group = group_at(row);
  unsigned device_row = atomic_load(&group->device_row) % SIM_MAX_DEVICES;
  unsigned place = place_of(schedule, device_row, row);
  uint64_t passed = atomic_load(&group->passed);
  insert(schedule, place,
         (struct schedule_group){.owner = atomic_load(&group->owner),
                                 .row = row,
                                 .device_row = (uint16_t)device_row,
                                 .queued = passed,
                                 .passed = passed});
  return &schedule->groups[place];
}

void schedule_remove(struct schedule *schedule, unsigned row) {
  schedule_unload(schedule, row);
  for (unsigned place = schedule->group_count; place > 0; place--)
    if (schedule->groups[place - 1].row == row)
      remove_at(schedule, place - 1);
}

static bool is_waiting(const struct schedule_group *group) {
  return group->passed < group->queued;
}

static bool is_forgotten(const struct schedule *schedule, const struct schedule_group *group) {
  bool is_recent = group->bucket + STATE_BUCKETS > schedule->now_ns / STATE_BUCKET_NS;
  return !is_waiting(group) && !group->off && !group->copies_off && !is_recent;
}

void schedule_sweep(struct schedule *schedule) {
  for (unsigned place = schedule->group_count; place > 0; place--) {
    const struct schedule_group *group = &schedule->groups[place - 1];
    bool is_dead = !state_owner_is_live(group->owner);
    if (is_dead)
      schedule_unload(schedule, group->row);
    if (is_dead || is_forgotten(schedule, group))
      remove_at(schedule, place - 1);
  }
}

/* ---- pieces ------------------------------------------------------------------------------------------------------ */

static struct state_piece *first_of(const struct schedule_group *group) {
  return piece_at(group->row, group->passed + 1);
}

static const struct schedule_effect *find_effect(const struct schedule *schedule, enum schedule_effect_kind kind,
                                                 uint64_t name) {
  for (unsigned i = schedule->effect_count; i > 0; i--) {
    const struct schedule_effect *effect = &schedule->effects[i - 1];
    if (effect->kind == kind && effect->row == piece_row(name) && effect->number == piece_number(name))
      return effect;
  }
  return NULL;
}

static uint64_t end_of(const struct schedule *schedule, uint64_t name) {
  const struct schedule_effect *effect = time_is_copy(name) ? find_effect(schedule, EFFECT_COPIED, name) : NULL;
  if (!effect)
    effect = find_effect(schedule, EFFECT_ENDED, name);
  return effect ? effect->time_ns : piece_end(name);
}

static bool has_ended(const struct schedule *schedule, const struct schedule_group *own, uint64_t name) {
  unsigned row = piece_row(name);
  unsigned place = row == own->row ? (unsigned)(own - schedule->groups) : find(schedule, row);
  const struct schedule_group *group = &schedule->groups[place % STATE_MAX_QUEUES];
  uint64_t number = piece_number(name);
  return place == STATE_MAX_QUEUES || number <= group->passed || (time_is_copy(name) && number <= group->copied);
}

/* When a piece may begin. */
static uint64_t begins_at(const struct schedule *schedule, const struct schedule_group *group,
                          const struct state_piece *piece) {
  uint64_t after = piece->after;
  if (!time_is_piece(after))
    return after ? after + piece->after_ns : 0;
  if (!has_ended(schedule, group, after))
    return NEVER;
  return piece->after_ns ? end_of(schedule, after) + piece->after_ns : 0;
}

static bool are_one(unsigned row, unsigned other) {
  uint64_t leader = atomic_load(&group_at(row)->leader);
  return row == other || (leader && atomic_load(&group_at(other)->leader) == leader);
}

/* What stops one client of an MPS server on a device stops all of them there. */
static bool is_off(const struct schedule *schedule, const struct schedule_group *group) {
  unsigned place = schedule->first[group->device_row], end = schedule->first[group->device_row + 1U];
  if (group->off || !atomic_load(&group_at(group->row)->leader))
    return group->off != 0;
  while (place < end && !(schedule->groups[place].off && are_one(group->row, schedule->groups[place].row)))
    place++;
  return place < end;
}

static bool can_run(const struct schedule *schedule, const struct schedule_group *group) {
  return is_waiting(group) && !is_off(schedule, group) &&
         begins_at(schedule, group, first_of(group)) <= schedule->now_ns;
}

/* The number of the copy that a group's copy engine works at while the group is off; 0: none. */
static uint64_t find_copy(const struct schedule *schedule, struct schedule_group *group) {
  if (!is_off(schedule, group) || group->copies_off)
    return 0;
  uint64_t number = max_u64(group->copied, group->passed) + 1;
  while (number <= group->queued && !piece_at(group->row, number)->is_copy)
    number++;
  group->copied = number - 1;
  if (number > group->queued)
    return 0;
  if (group->copying != number && number > group->passed + 1) {
    group->copying = number;
    group->copy_left_ns = piece_at(group->row, number)->duration_ns;
  }
  return number;
}

static uint64_t *copy_left(struct schedule_group *group, uint64_t number) {
  return number == group->passed + 1 ? &group->left_ns : &group->copy_left_ns;
}

/* Sets what is left to do of the piece that has become the first. A copy may have begun already. */
static void load_first(struct schedule_group *group) {
  uint64_t number = group->passed + 1;
  const struct state_piece *piece = first_of(group);
  if (number > group->queued)
    group->left_ns = 0;
  else if (piece->is_copy && number <= group->copied)
    group->left_ns = 0;
  else
    group->left_ns = group->copying == number ? group->copy_left_ns : piece->duration_ns;
}

void schedule_queue(struct schedule *schedule, unsigned row, uint64_t number) {
  struct schedule_group *group = schedule_get(schedule, row);
  struct state_piece *piece = piece_at(row, number);
  bool was_waiting = is_waiting(group);
  group->queued_ns += piece->duration_ns;
  piece->until_ns = group->queued_ns;
  group->queued = number;
  if (was_waiting)
    return;
  group->passed = number - 1;
  load_first(group);
}

/* ---- what runs --------------------------------------------------------------------------------------------------- */

/* The groups of an MPS server's clients are one on a card: those of them that can run divide the slice. */
static uint64_t slice_of(const struct schedule *schedule, const struct schedule_group *group) {
  uint64_t slice_ns = atomic_load(&group_at(group->row)->slice_ns), count = 0;
  for (unsigned place = schedule->first[group->device_row]; place < schedule->first[group->device_row + 1U]; place++)
    count += are_one(group->row, schedule->groups[place].row) && can_run(schedule, &schedule->groups[place]);
  return max_u64(slice_ns / max_u64(count, 1), LEAST_SLICE_NS);
}

/* The current group goes on to the end of its slice; then comes the next that can run. NULL: there is none. */
static struct schedule_group *choose(struct schedule *schedule, unsigned device_row) {
  struct schedule_engine *engine = &schedule->engines[device_row];
  struct schedule_group *groups = &schedule->groups[schedule->first[device_row]];
  unsigned count = schedule->first[device_row + 1] - schedule->first[device_row], next = 0;
  if (engine->current) {
    next = place_of(schedule, device_row, (unsigned)engine->current - 1) - schedule->first[device_row];
    if (next < count && groups[next].row == engine->current - 1) {
      if (engine->slice_left_ns && can_run(schedule, &groups[next]))
        return &groups[next];
      next++;
    }
  }
  for (unsigned i = 0; i < count; i++, next++) {
    struct schedule_group *group = &groups[next % count];
    if (!can_run(schedule, group))
      continue;
    if (engine->current != group->row + 1)
      engine->switch_left_ns =
          engine->current && !are_one((unsigned)engine->current - 1, group->row) ? sim_config.context_switch_ns : 0;
    engine->current = group->row + 1;
    engine->slice_left_ns = slice_of(schedule, group);
    return group;
  }
  return NULL;
}

/* How long the device goes on as it is. */
static uint64_t time_to_next(struct schedule *schedule, unsigned device_row, const struct schedule_group *current) {
  const struct schedule_engine *engine = &schedule->engines[device_row];
  uint64_t least_ns = NEVER, now_ns = schedule->now_ns;
  unsigned waiting = 0;
  for (unsigned place = schedule->first[device_row]; place < schedule->first[device_row + 1]; place++) {
    struct schedule_group *group = &schedule->groups[place];
    if (!is_waiting(group))
      continue;
    waiting++;
    if (group == current)
      continue;
    uint64_t copy = find_copy(schedule, group);
    uint64_t begins_ns = begins_at(schedule, group, copy ? piece_at(group->row, copy) : first_of(group));
    if (begins_ns > now_ns && begins_ns != NEVER)
      least_ns = min_u64(least_ns, begins_ns - now_ns);
    else if (copy && begins_ns <= now_ns)
      least_ns = min_u64(least_ns, *copy_left(group, copy));
  }
  if (!current)
    return least_ns;
  if (engine->switch_left_ns)
    return min_u64(least_ns, engine->switch_left_ns);
  return min_u64(least_ns, waiting == 1 ? current->left_ns : min_u64(engine->slice_left_ns, current->left_ns));
}

static void record_busy(struct schedule_group *group, uint64_t start_ns, uint64_t end_ns) {
  while (start_ns < end_ns) {
    uint64_t bucket = start_ns / STATE_BUCKET_NS;
    uint64_t until_ns = min_u64(end_ns, (bucket + 1) * STATE_BUCKET_NS);
    if (group->bucket + STATE_BUCKETS < bucket)
      group->bucket = bucket - STATE_BUCKETS;
    while (group->bucket < bucket)
      group->busy_ns[++group->bucket % STATE_BUCKETS] = 0;
    group->busy_ns[bucket % STATE_BUCKETS] += (uint32_t)(until_ns - start_ns);
    start_ns = until_ns;
  }
}

static void add_effect(struct schedule *schedule, enum schedule_effect_kind kind, const struct schedule_group *group,
                       uint64_t number, uint64_t time_ns) {
  schedule->effects[schedule->effect_count++] = (struct schedule_effect){kind, 0, group->row, number, time_ns};
}

static bool has_room(const struct schedule *schedule) {
  return schedule->effect_count < MOST_EFFECTS;
}

/* The first piece has ended, and with it copies behind it that had ended before. */
static void pass(struct schedule *schedule, struct schedule_group *group, uint64_t now_ns) {
  do
    add_effect(schedule, EFFECT_ENDED, group, ++group->passed, now_ns);
  while (has_room(schedule) && is_waiting(group) && group->passed < group->copied && first_of(group)->is_copy);
  load_first(group);
  if (!is_waiting(group))
    schedule_preempt(schedule, group->row); /* the rest of the slice is given away */
}

static void use_slice(struct schedule *schedule, const struct schedule_group *group, uint64_t span_ns) {
  struct schedule_engine *engine = &schedule->engines[group->device_row];
  if (span_ns > engine->slice_left_ns) { /* alone: a new one has begun */
    uint64_t slice_ns = slice_of(schedule, group);
    engine->slice_left_ns += slice_ns * ((span_ns - engine->slice_left_ns) / slice_ns + 1);
  }
  engine->slice_left_ns -= span_ns;
}

static void run(struct schedule *schedule, struct schedule_group *group, uint64_t span_ns) {
  struct schedule_engine *engine = &schedule->engines[group->device_row];
  uint64_t end_ns = schedule->now_ns + span_ns;
  load(schedule, group);
  if (engine->switch_left_ns) {
    engine->switch_left_ns -= span_ns;
    return;
  }
  use_slice(schedule, group, span_ns);
  record_busy(group, schedule->now_ns, end_ns);
  group->left_ns -= span_ns;
  group->done_ns += span_ns;
  if (!group->left_ns)
    pass(schedule, group, end_ns);
}

static void run_copy(struct schedule *schedule, struct schedule_group *group, uint64_t span_ns) {
  uint64_t number = find_copy(schedule, group), end_ns = schedule->now_ns + span_ns;
  if (!number || begins_at(schedule, group, piece_at(group->row, number)) > schedule->now_ns)
    return;
  uint64_t *left_ns = copy_left(group, number);
  *left_ns -= span_ns;
  group->done_ns += span_ns;
  if (*left_ns || !has_room(schedule)) /* without room it ends in the next step, at the same time */
    return;
  add_effect(schedule, EFFECT_COPIED, group, number, end_ns);
  group->copied = number;
  if (number == group->passed + 1)
    pass(schedule, group, end_ns);
}

/* All devices together, since a piece may wait for one of another device. */
bool schedule_advance(struct schedule *schedule, uint64_t now_ns) {
  struct schedule_group *current[SIM_MAX_DEVICES];
  while (schedule->now_ns < now_ns) {
    uint64_t span_ns = now_ns - schedule->now_ns;
    if (!has_room(schedule))
      return false;
    for (unsigned row = 0; row < SIM_MAX_DEVICES && schedule->first[row] < schedule->group_count; row++) {
      current[row] = choose(schedule, row);
      span_ns = min_u64(span_ns, time_to_next(schedule, row, current[row]));
    }
    for (unsigned row = 0; row < SIM_MAX_DEVICES && schedule->first[row] < schedule->group_count; row++) {
      for (unsigned place = schedule->first[row]; place < schedule->first[row + 1]; place++)
        if (is_waiting(&schedule->groups[place]))
          run_copy(schedule, &schedule->groups[place], span_ns);
      if (current[row])
        run(schedule, current[row], span_ns);
    }
    schedule->now_ns += span_ns;
  }
  return true;
}

void schedule_preempt(struct schedule *schedule, unsigned row) {
  struct schedule_engine *engine = &schedule->engines[group_at(row)->device_row % SIM_MAX_DEVICES];
  if (engine->current == row + 1)
    engine->slice_left_ns = 0;
}

/* ---- what others ask --------------------------------------------------------------------------------------------- */

uint64_t schedule_may_end_at(struct schedule *schedule, uint64_t name) {
  const struct schedule_group *group = schedule_find(schedule, piece_row(name));
  if (!group || has_ended(schedule, group, name))
    return schedule->now_ns;
  const struct schedule_engine *engine = &schedule->engines[group->device_row];
  if (!can_run(schedule, group) || !engine->current)
    return 0;
  uint64_t until_ns = piece_at(group->row, piece_number(name))->until_ns;
  if (until_ns < group->done_ns) /* copies behind it have been done */
    return 0;
  uint64_t end_ns = schedule->now_ns + until_ns - group->done_ns;
  if (engine->current == group->row + 1)
    return end_ns + engine->switch_left_ns;
  const struct schedule_group *before = schedule_find(schedule, (unsigned)engine->current - 1);
  uint64_t rest_ns = before ? min_u64(engine->slice_left_ns, before->queued_ns - before->done_ns) : 0;
  return end_ns + rest_ns + sim_config.context_switch_ns;
}

/* The oldest bucket counts in part, and the newest is filled by what has been. */
static uint64_t busy_ns(const struct schedule_group *group, struct span span) {
  uint64_t sum_ns = 0;
  for (uint64_t bucket = span.begin_ns / STATE_BUCKET_NS; bucket * STATE_BUCKET_NS < span.end_ns; bucket++) {
    uint64_t begin_ns = bucket * STATE_BUCKET_NS, counts_ns = STATE_BUCKET_NS;
    if (bucket > group->bucket || bucket + STATE_BUCKETS <= group->bucket)
      continue;
    if (begin_ns < span.begin_ns)
      counts_ns = begin_ns + STATE_BUCKET_NS - span.begin_ns;
    sum_ns += group->busy_ns[bucket % STATE_BUCKETS] * counts_ns / STATE_BUCKET_NS;
  }
  return sum_ns;
}

uint64_t schedule_busy_ns(const struct schedule *schedule, unsigned device_row, unsigned slot, struct span span) {
  uint64_t sum_ns = 0;
  for (unsigned place = schedule->first[device_row]; place < schedule->first[device_row + 1]; place++) {
    const struct schedule_group *group = &schedule->groups[place];
    if (slot == STATE_NO_SLOT || state_slot_of(group->owner) == slot)
      sum_ns += busy_ns(group, span);
  }
  return sum_ns;
}
