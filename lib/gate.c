/* Tokens, pauses, and room in flight. */
#include "evenly.h"
#include "gate_parts.h"
#include "log.h"
#include "meter_parts.h"

/* A turn is passed on before a sleep longer than this; for a shorter one the hand-over costs more than it gives. */
#define SHORT_SLEEP_NS 500000LL
#define YIELD_LOOK_NS 1000000LL  /* between looks whether those for whom we make way are still there */
#define PAUSE_LOOK_NS 20000000LL /* between looks at the limits file */
#define UNMEASURED_LOOK_NS 1000000LL
#define COMPANY_BATCH 2 /* of the usual length: a marker costs the GPU three microseconds, and slices are long */
#define LOOK_AGAIN_NS 2000000LL
#define MAKE_WAY_NS 1000000LL /* at least, for another process of the container */
/* Streams of several threads may be so far apart: else it would not show that they could run at the same time. */
#define THREADS_AHEAD_NS 30000000LL
#define MOST_TURNS 4 /* for which the tokens are gone when they come */
/* Then the limit is looked at again: the host may have changed it. */
#define LONGEST_SLEEP_NS EVENLY_LONGEST_SLEEP_NS

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
    gate_note_presence(meter);
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
    gate_drain_and_pass(meter);
  else
    meter_close_all(meter); /* other streams' batches: the wait would be measured in them */
  while (meter_terms(meter).paused) {
    meter->driver->sleep_ns(PAUSE_LOOK_NS);
    meter_harvest(meter);
  }
  return gate_note_wait(meter, began_ns, meter->driver->now_ns());
}

/* ---- tokens --------------------------------------------------------------------------------------------------- */

static void sleep_without_turn(struct meter *meter, int64_t duration_ns) {
  bool passes = duration_ns > SHORT_SLEEP_NS && gate_in_company(meter) && turns_is_ours(&meter->turns);
  int64_t until_ns = meter->driver->now_ns() + duration_ns;
  if (passes)
    gate_drain_and_pass(meter);
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
  if (gate_in_company(meter))
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
  return gate_in_flight_batches(meter) > 0 ? LOOK_AGAIN_NS : LONGEST_SLEEP_NS;
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
  return gate_note_wait(meter, began_ns, now_ns);
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
    waited_ns += turn_ns = gate_wait_for_turn(stream);
  }
  return waited_ns;
}

/* ---- room ----------------------------------------------------------------------------------------------------- */

static bool is_free_alone(const struct meter *meter) {
  return meter->observer != NULL && meter_terms(meter).yields;
}

static bool may_run_ahead(struct meter *meter) {
  return gate_in_flight_batches(meter) < METER_RING - 2 && is_free_alone(meter) && !gate_in_company(meter);
}

struct gate_pass gate_pass(struct meter *meter, int64_t now_ns) {
  if (gate_in_company(meter))
    return (struct gate_pass){.batch_ns =
                                  gate_slice_is_used_up(meter) ? GATE_LATE_BATCH_NS : METER_BATCH_NS * COMPANY_BATCH,
                              .open_until_ns = now_ns + GATE_PASSED_NS};
  bool is_free = is_free_alone(meter);
  int64_t ahead = gate_in_flight_batches(meter);
  bool runs_ahead = is_free && ahead > 1 && ahead < METER_RING - 2;
  return (struct gate_pass){METER_BATCH_NS * (runs_ahead ? ahead : 1), INT64_MAX, is_free};
}

/* Batches that may be in flight whatever they take: each time the patience ends, some more. */
static int64_t least_batches(const struct meter *meter) {
  int64_t batch_ns = meter_in_flight_ns(meter) / max(1, gate_in_flight_batches(meter));
  int64_t ends = gate_stalled_ns(meter) / gate_patience_ns(8 * batch_ns);
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
  bool passes = now_ns >= next_ns && gate_stalled_ns(meter) > METER_PATIENCE_NS;
  if (passes)
    __atomic_store_n(&meter->uncounted_ns, now_ns, __ATOMIC_RELAXED);
  return passes;
}

static bool has_room(const struct meter_stream *stream) {
  struct meter *meter = stream->meter;
  if (stream->head - __atomic_load_n(&stream->tail, __ATOMIC_ACQUIRE) >= METER_RING)
    return passes_uncounted(meter);
  return gate_in_flight_batches(meter) < least_batches(meter) || meter_in_flight_ns(meter) < METER_RUN_AHEAD_NS ||
         may_run_ahead(meter);
}

void gate_wait_for_room(const struct meter_stream *stream) {
  struct meter *meter = stream->meter;
  while (!has_room(stream)) {
    gate_sleep_a_little(meter);
    meter_harvest(meter);
    gate_note_presence(meter);
    gate_takes_no_turns(meter);
  }
}
