#include "timeline.h"

#include "shared_schedule.h"

#define ROOM (STATE_QUEUE / 2 - 512) /* more are queued only by calls that were let in before */
#define SWEEP_EVERY_NS (5 * NS_PER_MS)
#define LOOK_AGAIN_NS (10 * NS_PER_MS)     /* at a piece that ends later: by then it may be gone */
#define POLL_INTERVAL_NS (200 * NS_PER_US) /* at one that nobody can tell when it goes on */

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER; /* keeps this process's threads apart */
static uint64_t swept_ns;

/* ---- the true schedule ------------------------------------------------------------------------------------------- */

static bool only_looks(void) {
  return state_own_slot() == STATE_NO_SLOT;
}

static void sweep(struct schedule *schedule) {
  if (!only_looks() && schedule->now_ns < swept_ns + SWEEP_EVERY_NS)
    return;
  swept_ns = schedule->now_ns;
  schedule_sweep(schedule);
}

/* A copy of the true schedule in which the devices have got to this moment. */
static struct schedule *copy_as_of_now(void) {
  struct schedule *schedule = shared_schedule_copy();
  while (!schedule_advance(schedule, clock_ns())) {
    shared_schedule_publish();
    schedule = only_looks() ? schedule : shared_schedule_copy();
    schedule->effect_count = 0;
  }
  sweep(schedule);
  return schedule;
}

void timeline_do(timeline_change change, void *argument) {
  sigset_t before;
  kernel_lock(&lock, &before);
  do
    change(copy_as_of_now(), argument);
  while (!shared_schedule_publish());
  kernel_unlock(&lock, &before);
}

/* The file may be older than the machine's clock, and a dead process may have had this slot. */
static void begin_anew(struct schedule *schedule, void *argument) {
  (void)argument;
  schedule->now_ns = min_u64(schedule->now_ns, clock_ns());
  schedule_sweep(schedule);
}

void timeline_join(void) {
  timeline_do(begin_anew, NULL);
}

void timeline_leave_after_fork(void) {
  pthread_mutex_init(&lock, NULL);
}

static void look(struct schedule *schedule, void *argument) {
  (void)schedule;
  (void)argument;
}

/* ---- groups' work ------------------------------------------------------------------------------------------------ */

uint64_t timeline_half_rounds(unsigned row) {
  return atomic_load(&group_at(row)->queued) / (STATE_QUEUE / 2);
}

static bool has_room(unsigned row) {
  const struct state_group *group = group_at(row);
  return atomic_load(&group->queued) - atomic_load(&group->passed) < ROOM;
}

bool timeline_has_room(unsigned row) {
  if (!has_room(row))
    timeline_do(look, NULL);
  return has_room(row);
}

void timeline_wait_for_room(unsigned row) {
  timeline_wait(piece_name(row, atomic_load(&group_at(row)->queued) - ROOM, false));
}

static void queue(struct schedule *schedule, void *name) {
  schedule_queue(schedule, piece_row(*(uint64_t *)name), piece_number(*(uint64_t *)name));
}

/* The piece is written before: the first store into a page of the file may take milliseconds. */
uint64_t timeline_queue(unsigned row, struct work work) {
  uint64_t number = atomic_fetch_add(&group_at(row)->queued, 1) + 1;
  uint64_t name = piece_name(row, number, work.is_copy);
  *piece_at(row, number) = (struct state_piece){.ended = STATE_PENDING | number,
                                                .copied = STATE_PENDING | number,
                                                .duration_ns = work.duration_ns,
                                                .after = work.after,
                                                .after_ns = work.after_ns,
                                                .is_copy = work.is_copy};
  timeline_do(queue, &name);
  return name;
}

uint64_t timeline_known(uint64_t name) {
  uint64_t end_ns = piece_end(name);
  if (!end_ns) {
    timeline_do(look, NULL);
    end_ns = piece_end(name);
  }
  return end_ns ? end_ns : name;
}

struct wait {
  uint64_t name, now_ns, end_ns;
};

static void find_end(struct schedule *schedule, void *argument) {
  struct wait *wait = argument;
  wait->now_ns = schedule->now_ns;
  wait->end_ns = schedule_may_end_at(schedule, wait->name);
}

void timeline_wait(uint64_t name) {
  struct wait wait = {.name = name};
  if (piece_end(name))
    return;
  timeline_do(find_end, &wait);
  if (!wait.end_ns)
    clock_sleep_until(wait.now_ns + POLL_INTERVAL_NS);
  else if (wait.end_ns > wait.now_ns + LOOK_AGAIN_NS)
    clock_sleep_until(wait.now_ns + LOOK_AGAIN_NS);
  else
    clock_wait_until(wait.end_ns);
}

static void drop(struct schedule *schedule, void *row) {
  schedule_remove(schedule, *(const unsigned *)row);
}

void timeline_drop(unsigned row) {
  struct state_group *group = group_at(row);
  timeline_do(drop, &row);
  atomic_store(&group->passed, atomic_load(&group->queued));
}
