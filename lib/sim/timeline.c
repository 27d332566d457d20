#include "timeline.h"

#include <sched.h>

#include "busy.h"
#include "groups.h"

#define PIECE (1ULL << 62)
#define COPY (1ULL << 61)
#define NUMBER_BITS 50
#define NUMBER_MASK ((1ULL << NUMBER_BITS) - 1)
#define LONG_AGO_NS 1
#define NEVER UINT64_MAX
#define ROOM (STATE_QUEUE / 2 - 512) /* more are queued only by calls that were let in before */
#define YIELDS_BEFORE_LOOK 256       /* at the lock's holder */
#define LOOK_FOR_DEAD_EVERY_NS (5 * NS_PER_MS)
#define LOOK_AGAIN_NS (10 * NS_PER_MS)     /* at a piece that ends later: by then it may be gone */
#define POLL_INTERVAL_NS (200 * NS_PER_US) /* at one that nobody can tell when it goes on */

static struct state_group *group_at(unsigned row) {
  return &state_mapped()->groups[row];
}

static struct state_piece *piece_at(unsigned row, uint64_t number) {
  return &state_mapped()->queues[row][number % STATE_QUEUE];
}

static struct state_engine *engine_of(unsigned row) {
  return &state_mapped()->timeline.engines[group_at(row)->device_row % SIM_MAX_DEVICES];
}

/* The counters have one writer at a time, under the lock. */
static uint64_t get(const _Atomic uint64_t *counter) {
  return atomic_load_explicit(counter, memory_order_relaxed);
}

static void set(_Atomic uint64_t *counter, uint64_t value) {
  atomic_store_explicit(counter, value, memory_order_relaxed);
}

/* ---- names of pieces --------------------------------------------------------------------------------------------- */

static uint64_t name_of(unsigned row, uint64_t number) {
  return PIECE | (uint64_t)row << NUMBER_BITS | number;
}

bool timeline_is_piece(uint64_t time_ns) {
  return time_ns >> 62 == 1;
}

unsigned timeline_group_of(uint64_t time_ns) {
  return (unsigned)(time_ns >> NUMBER_BITS) % STATE_MAX_GROUPS;
}

bool timeline_is_copy(uint64_t time_ns) {
  return timeline_is_piece(time_ns) && time_ns & COPY;
}

uint64_t timeline_with_all_before(uint64_t time_ns) {
  return timeline_is_piece(time_ns) ? time_ns & ~COPY : time_ns;
}

/* When it ended; 0: it has not. */
static uint64_t end_of(uint64_t time_ns) {
  unsigned row = timeline_group_of(time_ns);
  uint64_t number = time_ns & NUMBER_MASK;
  const struct state_group *group = group_at(row);
  if (number + STATE_QUEUE <= get(&group->queued))
    return LONG_AGO_NS;
  const struct state_piece *piece = piece_at(row, number);
  return (time_ns & COPY) && piece->copied_ns ? piece->copied_ns : piece->passed_ns;
}

/* ---- what runs --------------------------------------------------------------------------------------------------- */

static bool is_waiting(const struct state_engine *engine, unsigned row) {
  return engine->waiting[row / 64] >> row % 64 & 1;
}

static void set_waiting(struct state_engine *engine, unsigned row, bool waiting) {
  if (is_waiting(engine, row) == waiting)
    return;
  engine->waiting[row / 64] ^= 1ULL << row % 64;
  engine->waiting_count += waiting ? 1 : UINT32_MAX;
}

/* The next group with work at or after a row, cyclically: there is one. */
static unsigned next_waiting(const struct state_engine *engine, unsigned row) {
  for (;;) {
    row %= STATE_MAX_GROUPS;
    uint64_t rest = engine->waiting[row / 64] >> row % 64;
    if (rest)
      return row + (unsigned)__builtin_ctzll(rest);
    row = (row / 64 + 1) * 64;
  }
}

/* When a piece may begin. */
static uint64_t begins_at(struct state_piece *piece) {
  if (!piece->after)
    return 0;
  uint64_t end_ns = timeline_is_piece(piece->after) ? end_of(piece->after) : piece->after;
  return end_ns ? end_ns + piece->after_ns : NEVER;
}

static struct state_piece *first_of(unsigned row) {
  return piece_at(row, get(&group_at(row)->passed) + 1);
}

static bool can_run(unsigned row, uint64_t now_ns) {
  const struct state_group *group = group_at(row);
  return !group->off && begins_at(first_of(row)) <= now_ns;
}

/* The copy that a group's copy engine works at while the group is off; NULL: none. */
static struct state_piece *copy_of(unsigned row) {
  struct state_group *group = group_at(row);
  if (!group->off || (group->copies && group_at(group->copies - 1)->off))
    return NULL;
  group->next_copy = max_u64(group->next_copy, get(&group->passed) + 1);
  for (; group->next_copy <= get(&group->queued); group->next_copy++) {
    struct state_piece *piece = piece_at(row, group->next_copy);
    if (piece->is_copy && !piece->copied_ns)
      return piece;
  }
  return NULL;
}

/* The current group goes on to the end of its slice; then comes the next that can run. */
static void choose(struct state_engine *engine, uint64_t now_ns) {
  unsigned current = engine->current ? engine->current - 1 : STATE_MAX_GROUPS - 1;
  engine->runs = true;
  if (engine->current && engine->slice_left_ns && is_waiting(engine, current) && can_run(current, now_ns))
    return;
  unsigned row = current;
  for (unsigned i = 0; i < engine->waiting_count; i++) {
    row = next_waiting(engine, row + 1);
    if (!can_run(row, now_ns))
      continue;
    if (row != current || !engine->current)
      engine->switch_left_ns = engine->current ? sim_config.context_switch_ns : 0;
    engine->current = row + 1;
    engine->slice_left_ns = group_at(row)->slice_ns;
    return;
  }
  engine->runs = false;
}

/* How long what runs on a device goes on as it is. */
static uint64_t time_to_next(struct state_engine *engine, uint64_t now_ns) {
  uint64_t least_ns = NEVER;
  choose(engine, now_ns);
  if (engine->runs && engine->switch_left_ns)
    least_ns = engine->switch_left_ns;
  else if (engine->runs && engine->waiting_count == 1)
    return first_of(engine->current - 1)->left_ns;
  else if (engine->runs)
    least_ns = min_u64(engine->slice_left_ns, first_of(engine->current - 1)->left_ns);
  unsigned row = 0;
  for (unsigned i = 0; i < engine->waiting_count; i++, row++) {
    row = next_waiting(engine, row);
    struct state_piece *copy = copy_of(row);
    struct state_piece *piece = copy ? copy : first_of(row);
    uint64_t begins_ns = begins_at(piece);
    if (begins_ns > now_ns && begins_ns != NEVER)
      least_ns = min_u64(least_ns, begins_ns - now_ns);
    else if (copy && begins_ns <= now_ns)
      least_ns = min_u64(least_ns, copy->left_ns);
  }
  return least_ns;
}

static void work_at(unsigned row, struct state_piece *piece, uint64_t start_ns, uint64_t span_ns) {
  struct state_group *group = group_at(row);
  piece->left_ns -= min_u64(span_ns, piece->left_ns);
  group->done_ns += span_ns;
  if (span_ns && group->slot < STATE_MAX_PROCESSES)
    busy_record(&state_process(group->slot)->devices[group->device_row], start_ns, start_ns + span_ns);
}

/* The first piece has ended, and with it copies behind it that had ended before. */
static void pass(unsigned row, uint64_t now_ns) {
  struct state_group *group = group_at(row);
  uint64_t number = get(&group->passed) + 1;
  do
    piece_at(row, number++)->passed_ns = now_ns;
  while (number <= get(&group->queued) && piece_at(row, number)->copied_ns);
  set(&group->passed, number - 1);
  if (number > get(&group->queued)) {
    timeline_preempt(row); /* the rest of the slice is given away */
    set_waiting(engine_of(row), row, false);
  }
}

static void use_slice(struct state_engine *engine, uint64_t span_ns) {
  uint64_t slice_ns = group_at(engine->current - 1)->slice_ns;
  if (span_ns > engine->slice_left_ns) /* alone: a new one has begun */
    engine->slice_left_ns += slice_ns * ((span_ns - engine->slice_left_ns) / slice_ns + 1);
  engine->slice_left_ns -= span_ns;
}

static void run_current(struct state_engine *engine, uint64_t start_ns, uint64_t span_ns) {
  if (engine->switch_left_ns) {
    engine->switch_left_ns -= span_ns;
    return;
  }
  unsigned row = engine->current - 1;
  struct state_piece *piece = first_of(row);
  use_slice(engine, span_ns);
  work_at(row, piece, start_ns, span_ns);
  if (!piece->left_ns)
    pass(row, start_ns + span_ns);
}

static void run_copies(struct state_engine *engine, uint64_t start_ns, uint64_t span_ns) {
  unsigned row = 0;
  for (unsigned i = engine->waiting_count; i > 0; i--, row++) {
    row = next_waiting(engine, row);
    struct state_piece *copy = copy_of(row);
    if (!copy || begins_at(copy) > start_ns)
      continue;
    work_at(row, copy, start_ns, span_ns);
    if (copy->left_ns)
      continue;
    copy->copied_ns = start_ns + span_ns;
    if (copy == first_of(row))
      pass(row, copy->copied_ns);
  }
}

/* All devices together, since a piece may wait for one of another device. */
static void advance_to(uint64_t now_ns) {
  struct state_timeline *timeline = &state_mapped()->timeline;
  while (timeline->now_ns < now_ns) {
    uint64_t span_ns = now_ns - timeline->now_ns;
    bool any = false;
    for (unsigned i = 0; i < SIM_MAX_DEVICES; i++)
      if (timeline->engines[i].waiting_count) {
        any = true;
        span_ns = min_u64(span_ns, time_to_next(&timeline->engines[i], timeline->now_ns));
      }
    for (unsigned i = 0; any && i < SIM_MAX_DEVICES; i++) {
      struct state_engine *engine = &timeline->engines[i];
      if (!engine->waiting_count)
        continue;
      run_copies(engine, timeline->now_ns, span_ns);
      if (engine->runs)
        run_current(engine, timeline->now_ns, span_ns);
    }
    timeline->now_ns += span_ns;
  }
}

/* ---- the lock ---------------------------------------------------------------------------------------------------- */

/* Its holder may have died anywhere: what is derived is made anew. */
static void recover(void) {
  struct state *state = state_mapped();
  for (unsigned i = 0; i < SIM_MAX_DEVICES; i++)
    state->timeline.engines[i] = (struct state_engine){0};
  for (unsigned row = 0; row < STATE_MAX_GROUPS; row++)
    if (state->groups[row].engine_type && get(&state->groups[row].passed) < get(&state->groups[row].queued))
      set_waiting(engine_of(row), row, true);
}

static uint32_t own_holder(void) {
  return state_own_slot() + 1;
}

static bool take_from_dead(void) {
  _Atomic uint32_t *holder = &state_mapped()->timeline.holder;
  uint32_t seen = atomic_load(holder), own = own_holder();
  bool is_dead = seen == own ? seen == STATE_NO_SLOT + 1 : seen && !state_slot_is_live(seen - 1);
  if (!is_dead || !atomic_compare_exchange_strong(holder, &seen, own))
    return false;
  recover();
  return true;
}

static void look_for_dead(uint64_t now_ns) {
  static uint64_t last_look_ns;
  if (now_ns < last_look_ns + LOOK_FOR_DEAD_EVERY_NS)
    return;
  last_look_ns = now_ns;
  const struct state_timeline *timeline = &state_mapped()->timeline;
  for (unsigned i = 0; i < SIM_MAX_DEVICES; i++) {
    unsigned row = 0;
    for (unsigned left = timeline->engines[i].waiting_count; left > 0; left--, row++) {
      row = next_waiting(&timeline->engines[i], row);
      groups_forget_if_dead(row);
    }
  }
}

static void take(void) {
  _Atomic uint32_t *holder = &state_mapped()->timeline.holder;
  uint32_t nobody = 0;
  if (state_own_slot() == STATE_NO_SLOT)
    state_begin_visit();
  for (unsigned tries = 1; !atomic_compare_exchange_weak(holder, &nobody, own_holder()); tries++) {
    nobody = 0;
    if (tries % YIELDS_BEFORE_LOOK == 0 && take_from_dead())
      break;
    sched_yield();
  }
}

static uint64_t advance(void) {
  uint64_t now_ns = clock_ns();
  look_for_dead(now_ns);
  advance_to(now_ns);
  return now_ns;
}

uint64_t timeline_lock(void) {
  take();
  return advance();
}

void timeline_unlock(void) {
  atomic_store(&state_mapped()->timeline.holder, 0);
  if (state_own_slot() == STATE_NO_SLOT)
    state_end_visit();
}

void timeline_join(void) {
  struct state_timeline *timeline = &state_mapped()->timeline;
  if (atomic_load(&timeline->holder) == own_holder())
    recover(); /* it is ours already */
  else
    take();
  timeline->now_ns = min_u64(timeline->now_ns, clock_ns()); /* the file may be older than the machine's clock */
  groups_join();
  timeline_unlock();
}

uint64_t timeline_advance(void) {
  uint64_t now_ns = timeline_lock();
  timeline_unlock();
  return now_ns;
}

/* ---- groups' work ------------------------------------------------------------------------------------------------ */

uint64_t timeline_half_rounds(unsigned row) {
  return get(&group_at(row)->queued) / (STATE_QUEUE / 2);
}

bool timeline_has_room(unsigned row) {
  const struct state_group *group = group_at(row);
  if (get(&group->queued) - get(&group->passed) < ROOM)
    return true;
  timeline_advance();
  return get(&group->queued) - get(&group->passed) < ROOM;
}

void timeline_wait_for_room(unsigned row) {
  timeline_wait(name_of(row, get(&group_at(row)->queued) - ROOM));
}

/* The work is there once it is written: the first store into a page of the file may take milliseconds. */
uint64_t timeline_queue(unsigned row, struct work work) {
  take();
  struct state_group *group = group_at(row);
  uint64_t number = get(&group->queued) + 1;
  *piece_at(row, number) = (struct state_piece){.left_ns = work.duration_ns,
                                                .until_ns = group->queued_ns + work.duration_ns,
                                                .after = work.after,
                                                .after_ns = work.after_ns,
                                                .is_copy = work.is_copy};
  advance();
  group->queued_ns += work.duration_ns;
  set(&group->queued, number);
  set_waiting(engine_of(row), row, true);
  timeline_unlock();
  return name_of(row, number) | (work.is_copy ? COPY : 0);
}

uint64_t timeline_known(uint64_t time_ns) {
  timeline_lock();
  uint64_t end_ns = end_of(time_ns);
  timeline_unlock();
  return end_ns ? end_ns : time_ns;
}

/* The earliest time at which it may end; 0 where nobody can tell. */
static uint64_t may_end_at(uint64_t time_ns, uint64_t now_ns) {
  unsigned row = timeline_group_of(time_ns);
  const struct state_group *group = group_at(row);
  const struct state_engine *engine = engine_of(row);
  if (end_of(time_ns))
    return now_ns;
  if (!can_run(row, now_ns) || !engine->current)
    return 0;
  uint64_t until_ns = piece_at(row, time_ns & NUMBER_MASK)->until_ns;
  if (until_ns < group->done_ns) /* copies behind it have been done */
    return 0;
  uint64_t end_ns = now_ns + until_ns - group->done_ns;
  if (engine->current == row + 1)
    return end_ns + engine->switch_left_ns;
  const struct state_group *before = group_at(engine->current - 1);
  return end_ns + min_u64(engine->slice_left_ns, before->queued_ns - before->done_ns) + sim_config.context_switch_ns;
}

void timeline_wait(uint64_t time_ns) {
  uint64_t now_ns = timeline_lock();
  uint64_t end_ns = may_end_at(time_ns, now_ns);
  timeline_unlock();
  if (!end_ns)
    clock_sleep_until(now_ns + POLL_INTERVAL_NS);
  else if (end_ns > now_ns + LOOK_AGAIN_NS)
    clock_sleep_until(now_ns + LOOK_AGAIN_NS);
  else
    clock_wait_until(end_ns);
}

void timeline_drop(unsigned row) {
  struct state_group *group = group_at(row);
  struct state_engine *engine = engine_of(row);
  for (uint64_t number = get(&group->passed) + 1; number <= get(&group->queued); number++)
    piece_at(row, number)->passed_ns = state_mapped()->timeline.now_ns;
  set(&group->passed, get(&group->queued));
  group->done_ns = group->queued_ns;
  set_waiting(engine, row, false);
  if (engine->current == row + 1)
    engine->current = 0;
}

void timeline_preempt(unsigned row) {
  if (engine_of(row)->current == row + 1)
    engine_of(row)->slice_left_ns = 0;
}
