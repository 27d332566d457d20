#include "gate.h"

#include "bucket.h"
#include "evenly.h"
#include "log.h"
#include "meter_parts.h"

/* A turn is passed on before a sleep longer than this; for a shorter one the hand-over costs more than it gives. */
#define SHORT_SLEEP_NS 500000LL
#define YIELD_LOOK_NS 1000000LL  /* between looks whether those for whom we make way are still there */
#define PAUSE_LOOK_NS 20000000LL /* between looks at the limits file */
#define UNMEASURED_LOOK_NS 1000000LL
#define LATE_NS 100000LL /* how late a sleep may end */
#define SHORTEST_SLEEP_NS 20000LL
#define COMPANY_BATCH 2 /* of the usual length: a marker costs the GPU three microseconds, and slices are long */
#define LATE_BATCH_NS (METER_BATCH_NS / 4) /* after a slice has been used up; together METER_BATCH_NS */
#define LOOK_AGAIN_NS 2000000LL
#define MAKE_WAY_NS 1000000LL /* at least, for another process of the container */
/* Streams of several threads may be so far apart: else it would not show that they could run at the same time. */
#define THREADS_AHEAD_NS 30000000LL
#define MOST_TURNS 4 /* for which the tokens are gone when they come */
/* Then the limit is looked at again: the host may have changed it. */
#define LONGEST_SLEEP_NS EVENLY_LONGEST_SLEEP_NS

static int64_t min(int64_t a, int64_t b) {
  return a < b ? a : b;
}

static int64_t max(int64_t a, int64_t b) {
  return a > b ? a : b;
}

static uint32_t in_flight_batches(const struct meter *meter) {
  return __atomic_load_n(&meter->in_flight_batches, __ATOMIC_RELAXED);
}

/* Since when work in flight has made no progress. */
static int64_t stalled_ns(const struct meter *meter) {
  if (in_flight_batches(meter) == 0)
    return 0;
  return meter->driver->now_ns() - __atomic_load_n(&meter->progress_ns, __ATOMIC_RELAXED);
}

static int64_t patience_ns(int64_t expected_ns) {
  return min(max(METER_PATIENCE_NS, expected_ns), BUCKET_MAX_DEBT_NS);
}

/* For display. Room in flight is not counted: there the GPU is busy with our own work. */
static int64_t note_wait(struct meter *meter, int64_t began_ns, int64_t ended_ns) {
  if (ended_ns > began_ns)
    __atomic_add_fetch(&meter->device->gate_wait_ns, (uint64_t)(ended_ns - began_ns), __ATOMIC_RELAXED);
  if (ended_ns > began_ns && meter->observer != NULL)
    meter->observer->waited(meter, began_ns, ended_ns);
  return ended_ns - began_ns;
}

/* A part of what is in flight, so that its end is not slept through. */
static void sleep_a_little(const struct meter *meter) {
  meter->driver->sleep_ns(min(max(meter_in_flight_ns(meter) / 32, SHORTEST_SLEEP_NS), 1000000));
}

/* ---- turns ---------------------------------------------------------------------------------------------------- */

/* How long until what is in flight should be done. */
static int64_t left_ns(const struct meter *meter) {
  int64_t busy_from_ns = __atomic_load_n(&meter->busy_from_ns, __ATOMIC_RELAXED);
  return busy_from_ns + meter_in_flight_ns(meter) - meter->driver->now_ns();
}

/* Neither the last moment is slept through, since a sleep ends late, nor all that comes before it: the work may take
 * less than was expected of it. The GPU would be idle meanwhile. */
static void wait_for_work_in_flight(struct meter *meter) {
  int64_t expected_ns = left_ns(meter);
  if (expected_ns > LATE_NS)
    meter->driver->sleep_ns(min(min(expected_ns / 4, expected_ns - LATE_NS), 1000000));
  else if (expected_ns < -LATE_NS)
    sleep_a_little(meter);
  meter_harvest(meter);
}

/* The next one is to find the GPU free: if two were there at once, each would be measured with the other's time. */
static void drain_and_pass(struct meter *meter) {
  meter_close_all(meter);
  int64_t give_up_ns = meter->driver->now_ns() + METER_PATIENCE_NS;
  meter_harvest(meter);
  while (in_flight_batches(meter) > 0 && meter->driver->now_ns() < give_up_ns) {
    turns_announce_pass(&meter->turns, meter->driver->now_ns() + left_ns(meter));
    wait_for_work_in_flight(meter);
  }
  turns_pass(&meter->turns, in_flight_batches(meter) == 0);
}

static bool in_company(struct meter *meter) {
  return meter->takes_turns && meter_terms(meter).takes_turns && turns_have_company(&meter->turns);
}

/* Is there work in flight that makes no progress, for much longer than was expected of it? It would hold the turn from
 * the others, again and again. */
static bool is_stuck(struct meter *meter) {
  meter_harvest(meter);
  return stalled_ns(meter) > patience_ns(2 * meter_in_flight_ns(meter));
}

/* Work that does not end is left to the GPU's own time-slicing. */
static bool takes_no_turns(struct meter *meter) {
  if (!in_company(meter))
    return true;
  bool stuck = is_stuck(meter);
  turns_set_stuck(&meter->turns, stuck);
  if (stuck)
    turns_pass(&meter->turns, false);
  return stuck;
}

static int64_t late_ns(const struct meter *meter) {
  return __atomic_load_n(&meter->late_ns, __ATOMIC_RELAXED);
}

static void set_late_ns(struct meter *meter, int64_t to) {
  __atomic_store_n(&meter->late_ns, to, __ATOMIC_RELAXED);
}

/* While the last work of a slice is on the GPU, the host need not stand still: where it is slower than the GPU for some
 * milliseconds, as in an optimizer, that is hidden now, and else would come first in the next slice, without a lead. */
static bool goes_on(const struct meter_stream *stream) {
  struct meter *meter = stream->meter;
  if (!turns_must_pass(&meter->turns, meter_in_flight_ns(meter))) {
    set_late_ns(meter, 0);
    return true;
  }
  int64_t all_ns = late_ns(meter) + max(LATE_BATCH_NS, stream->usual_cost_ns);
  bool may = all_ns <= METER_BATCH_NS && left_ns(meter) > TURNS_GRACE_NS;
  if (may)
    set_late_ns(meter, all_ns);
  return may;
}

static int64_t wait_for_turn(const struct meter_stream *stream) {
  struct meter *meter = stream->meter;
  if (takes_no_turns(meter))
    return 0;
  int64_t began_ns = meter->driver->now_ns();
  if (!goes_on(stream))
    drain_and_pass(meter);
  if (turns_is_ours(&meter->turns)) /* to look is no wait: the host keeps its lead */
    return 0;
  meter_close_all(meter); /* other streams' batches: the wait would be measured in them */
  if (!turns_take(&meter->turns))
    log_line(LOG_INFO, "no turn on the GPU in %lld ms; going ahead without", TURNS_PATIENCE_NS / 1000000);
  int64_t ended_ns = meter->driver->now_ns();
  __atomic_store_n(&meter->took_turn_ns, ended_ns, __ATOMIC_RELAXED);
  set_late_ns(meter, 0);
  return note_wait(meter, began_ns, ended_ns);
}

/* Kernels of one name may take now one and now ten milliseconds: at work for as long as what is in flight may take, and
 * not only should. Otherwise the turn would be taken from them, and the GPU would mix the two. */
void gate_note_activity(struct meter *meter, int64_t more_ns) {
  int64_t now_ns = meter->driver->now_ns();
  __atomic_store_n(&meter->device->last_launch_ns, now_ns, __ATOMIC_RELAXED);
  if (!meter->takes_turns)
    return;
  int64_t at_most_percent = 100 + __atomic_load_n(&meter->overrun_percent, __ATOMIC_RELAXED);
  turns_note_activity(&meter->turns, now_ns + meter_in_flight_ns(meter) * at_most_percent / 100 + more_ns);
}

/* Who waits is there. */
static void note_presence(struct meter *meter) {
  if (meter->takes_turns)
    turns_note_presence(&meter->turns);
}

/* ---- what was launched before anything was measured ---------------------------------------------------------------
 */

/* Up to a thousand launches. No turn is passed while they are there, and what is added to them makes it last longer. */
void gate_wait_for_unmeasured(const struct meter_stream *stream) {
  struct meter *meter = stream->meter;
  const struct meter_driver *driver = meter->driver;
  int64_t since_ns = __atomic_load_n(&meter->measures_since_ns, __ATOMIC_RELAXED);
  int64_t give_up_ns = since_ns + TURNS_PATIENCE_NS;
  if (since_ns == 0 || driver->now_ns() >= give_up_ns || !meter_is_dry(stream) || driver->is_idle(stream->handle))
    return;
  turns_set_stuck(&meter->turns, true); /* the GPU mixes it with the others' work */
  while (driver->now_ns() < give_up_ns && !driver->is_idle(stream->handle)) {
    note_presence(meter);
    driver->sleep_ns(UNMEASURED_LOOK_NS);
  }
  turns_set_stuck(&meter->turns, false);
}

/* ---- pause ---------------------------------------------------------------------------------------------------- */

/* In short sleeps, so that whoever unpauses need not wake us, and a signal is the program's as ever. */
int64_t gate_wait_while_paused(struct meter *meter) {
  if (!meter_terms(meter).paused)
    return 0;
  int64_t began_ns = meter->driver->now_ns();
  if (meter->takes_turns && turns_is_ours(&meter->turns))
    drain_and_pass(meter);
  else
    meter_close_all(meter); /* other streams' batches: the wait would be measured in them */
  while (meter_terms(meter).paused) {
    meter->driver->sleep_ns(PAUSE_LOOK_NS);
    meter_harvest(meter);
  }
  return note_wait(meter, began_ns, meter->driver->now_ns());
}

/* ---- tokens --------------------------------------------------------------------------------------------------- */

static void sleep_without_turn(struct meter *meter, int64_t duration_ns) {
  bool passes = duration_ns > SHORT_SLEEP_NS && in_company(meter) && turns_is_ours(&meter->turns);
  int64_t until_ns = meter->driver->now_ns() + duration_ns;
  if (passes)
    drain_and_pass(meter);
  else
    meter_close_all(meter); /* other streams' batches: the wait would be measured in them */
  int64_t left_ns = until_ns - meter->driver->now_ns();
  if (left_ns > 0)
    meter->driver->sleep_ns(left_ns);
}

/* In nanoseconds of GPU time. Of more tokens than the bucket holds, those that overflow it would be lost; and a sleep
 * ends late. */
static int64_t quantum_ns(const struct meter_stream *stream) {
  struct meter *meter = stream->meter;
  if (in_company(meter))
    return METER_COMPANY_QUANTUM_NS;
  if (meter_looks_at_pace(stream, meter->driver->now_ns()))
    return METER_PACE_QUANTUM_NS;
  int64_t wall_ns = meter_streams_overlap(meter) ? METER_OVERLAP_QUANTUM_WALL_NS : METER_QUANTUM_WALL_NS;
  return min(wall_ns * meter_percent_of_time(meter) / 100, BUCKET_BURST_NS * 9 / 10);
}

/* Launches in flight have spoken for their tokens, and who has waited waits for some more. */
static int64_t spoken_for_ns(const struct meter_stream *stream, bool waited) {
  return min(meter_reserved_ns(stream->meter), BUCKET_MAX_DEBT_NS) + (waited ? quantum_ns(stream) : 0);
}

/* What is in flight may take less than was expected. */
static int64_t longest_sleep_ns(const struct meter *meter) {
  return in_flight_batches(meter) > 0 ? LOOK_AGAIN_NS : LONGEST_SLEEP_NS;
}

/* Of which nobody knows more than that it is another one for each process. */
static uint64_t name_of(struct meter *meter, int64_t now_ns) {
  uint64_t name = __atomic_load_n(&meter->name, __ATOMIC_RELAXED);
  uint64_t made = (uint64_t)now_ns * 0x9e3779b97f4a7c15ULL + (uintptr_t)meter; /* forked processes share addresses */
  if (name != 0 || !__atomic_compare_exchange_n(&meter->name, &name, made, false, __ATOMIC_RELAXED, __ATOMIC_RELAXED))
    return name;
  return made;
}

/* One that waits, or is about to: a process, or a stream of it. */
struct wanting {
  struct vgpu_waiter *places;
  int place;
  uint64_t owner;
  int64_t *had_ns;
  int64_t ahead_ns; /* of others that wait, before it makes way */
};

/* Until when it makes way for another one that waits and has had less; or 0. */
static int64_t makes_way_until_ns(const struct wanting *wanting, int64_t in_flight_ns, int64_t now_ns) {
  struct vgpu_waiter first;
  if (!evenly_first(wanting->places, wanting->owner, now_ns, &first))
    return 0;
  int64_t least_ns = first.had_ns - EVENLY_CREDIT_NS - wanting->ahead_ns - in_flight_ns;
  int64_t had_ns = __atomic_load_n(wanting->had_ns, __ATOMIC_RELAXED);
  if (had_ns < least_ns &&
      __atomic_compare_exchange_n(wanting->had_ns, &had_ns, least_ns, false, __ATOMIC_RELAXED, __ATOMIC_RELAXED))
    had_ns = least_ns;
  bool is_ahead = had_ns + in_flight_ns - first.had_ns > wanting->ahead_ns;
  return is_ahead ? max(first.looks_at_ns, now_ns + MAKE_WAY_NS) : 0;
}

static void note_waiting(struct wanting *wanting, int64_t in_flight_ns, int64_t now_ns, int64_t looks_at_ns) {
  struct vgpu_waiter waiter = {wanting->owner, __atomic_load_n(wanting->had_ns, __ATOMIC_RELAXED) + in_flight_ns,
                               looks_at_ns};
  wanting->place = evenly_wait(wanting->places, wanting->place, &waiter, now_ns);
}

/* Streams that run at the same time are not to be put in an order. */
static int64_t makes_way_for_any_until_ns(const struct meter *meter, struct wanting *process,
                                          const struct wanting *thread, bool waited, int64_t now_ns) {
  process->ahead_ns = waited ? 0 : METER_COMPANY_QUANTUM_NS; /* who is at work goes on */
  int64_t until_ns = makes_way_until_ns(process, meter_in_flight_ns(meter), now_ns);
  return meter_streams_overlap(meter) ? until_ns : max(until_ns, makes_way_until_ns(thread, 0, now_ns));
}

static int64_t wait_for_tokens(struct meter_stream *stream) {
  struct meter *meter = stream->meter;
  const struct meter_driver *driver = meter->driver;
  int64_t began_ns = driver->now_ns();
  int64_t now_ns = began_ns;
  int64_t give_up_ns = began_ns + BUCKET_MAX_DEBT_NS * 100 / meter_percent(meter);
  int64_t closed_ns = began_ns;
  struct wanting process = {meter->device->waiters, -1, name_of(meter, began_ns), &meter->had_ns, 0};
  struct wanting thread = {meter->waiters, -1, (uintptr_t)stream, &stream->had_ns, THREADS_AHEAD_NS};
  for (;;) {
    struct meter_terms terms = meter_terms(meter);
    bucket_follow_limit(meter->device, now_ns, terms.percent);
    meter_harvest(meter);
    int64_t open_at_ns = bucket_open_at(meter->device, now_ns, terms.percent);
    open_at_ns += spoken_for_ns(stream, now_ns > began_ns) * 100 / meter_percent_of_time(meter);
    if (open_at_ns > now_ns && terms.yields && !(meter->takes_turns && turns_are_wanted(&meter->turns))) {
      bucket_forgive(meter->device, now_ns);
      open_at_ns = now_ns;
    }
    if (open_at_ns > now_ns)
      closed_ns = now_ns;
    if (now_ns - closed_ns < EVENLY_PATIENCE_NS)
      open_at_ns = max(open_at_ns, makes_way_for_any_until_ns(meter, &process, &thread, now_ns > began_ns, now_ns));
    if (open_at_ns <= now_ns || now_ns >= give_up_ns)
      break;
    int64_t sleep_ns = min(open_at_ns - now_ns, terms.yields ? YIELD_LOOK_NS : longest_sleep_ns(meter));
    note_waiting(&process, meter_in_flight_ns(meter), now_ns, now_ns + sleep_ns);
    note_waiting(&thread, 0, now_ns, now_ns + sleep_ns);
    sleep_without_turn(meter, sleep_ns);
    now_ns = driver->now_ns();
  }
  evenly_leave(process.places, process.place, process.owner);
  evenly_leave(thread.places, thread.place, thread.owner);
  return note_wait(meter, began_ns, now_ns);
}

/* While it waited for its turn, other processes of the container may have used the tokens. */
static bool has_tokens(struct meter *meter) {
  int64_t now_ns = meter->driver->now_ns();
  return bucket_open_at(meter->device, now_ns, meter_percent(meter)) <= now_ns;
}

int64_t gate_wait_for_share(struct meter_stream *stream) {
  int64_t waited_ns = 0, turn_ns = SHORT_SLEEP_NS;
  for (int i = 0; i < MOST_TURNS && turn_ns >= SHORT_SLEEP_NS && (i == 0 || !has_tokens(stream->meter)); i++) {
    waited_ns += wait_for_tokens(stream);
    waited_ns += turn_ns = wait_for_turn(stream);
  }
  return waited_ns;
}

/* ---- room ----------------------------------------------------------------------------------------------------- */

static bool is_free_alone(const struct meter *meter) {
  return meter->observer != NULL && meter_terms(meter).yields;
}

static bool may_run_ahead(struct meter *meter) {
  return in_flight_batches(meter) < METER_RING - 2 && is_free_alone(meter) && !in_company(meter);
}

struct gate_pass gate_pass(struct meter *meter, int64_t now_ns) {
  if (in_company(meter))
    return (struct gate_pass){.batch_ns = late_ns(meter) > 0 ? LATE_BATCH_NS : METER_BATCH_NS * COMPANY_BATCH,
                              .open_until_ns = now_ns + GATE_PASSED_NS};
  bool is_free = is_free_alone(meter);
  int64_t ahead = in_flight_batches(meter);
  bool runs_ahead = is_free && ahead > 1 && ahead < METER_RING - 2;
  return (struct gate_pass){METER_BATCH_NS * (runs_ahead ? ahead : 1), INT64_MAX, is_free};
}

/* Batches that may be in flight whatever they take: each time the patience ends, some more. */
static int64_t least_batches(const struct meter *meter) {
  int64_t batch_ns = meter_in_flight_ns(meter) / max(1, in_flight_batches(meter));
  int64_t ends = stalled_ns(meter) / patience_ns(8 * batch_ns);
  if (ends == 0)
    return 2;
  static int said;
  log_once(&said, LOG_INFO, "GPU work in flight makes no progress; launches go on without waiting for it");
  return 2 + (1LL << (min(ends, METER_DOUBLINGS + 1) - 1)) +
         max(0, ends - METER_DOUBLINGS - 1) * (1LL << METER_DOUBLINGS);
}

/* What does not fit into the ring is not seen to end: at the same pace, one at a time. */
static bool passes_uncounted(struct meter *meter) {
  int64_t now_ns = meter->driver->now_ns();
  int64_t next_ns = __atomic_load_n(&meter->uncounted_ns, __ATOMIC_RELAXED) + (METER_PATIENCE_NS >> METER_DOUBLINGS);
  bool passes = now_ns >= next_ns && stalled_ns(meter) > METER_PATIENCE_NS;
  if (passes)
    __atomic_store_n(&meter->uncounted_ns, now_ns, __ATOMIC_RELAXED);
  return passes;
}

static bool has_room(const struct meter_stream *stream) {
  struct meter *meter = stream->meter;
  if (stream->head - __atomic_load_n(&stream->tail, __ATOMIC_ACQUIRE) >= METER_RING)
    return passes_uncounted(meter);
  return in_flight_batches(meter) < least_batches(meter) || meter_in_flight_ns(meter) < METER_RUN_AHEAD_NS ||
         may_run_ahead(meter);
}

void gate_wait_for_room(const struct meter_stream *stream) {
  struct meter *meter = stream->meter;
  while (!has_room(stream)) {
    sleep_a_little(meter);
    meter_harvest(meter);
    note_presence(meter);
    takes_no_turns(meter);
  }
}
