#include "gate.h"

#include "beside.h"
#include "bucket.h"
#include "log.h"
#include "meter_parts.h"
#include "wait_times.h"

/* The GPU is idle for some microseconds each time that work begins. So who has waited for tokens waits until it has
 * those of this time; beside others those of this much work, since a turn is to be worth its hand-over. */
#define QUANTUM_WALL_NS 5000000LL
#define QUANTUM_IN_COMPANY_NS 8000000LL
/* In flight at most, and never fewer than two batches: it keeps the GPU fed, and the next one waits for its end. */
#define RUN_AHEAD_NS 4000000LL
#define GIVES_WAY_NS 1000000LL /* while a tenant of higher priority is there, which waits until that is done */
/* Work in flight that makes no progress for so long may wait for the launch that is held here, such as a kernel that
 * waits for another GPU. Then a launch goes on, and twice as many each time that the patience ends again, up to 16. */
#define PATIENCE_NS 100000000LL
#define MOST_PATIENCE_NS 10000000000LL
#define DOUBLINGS 4
#define STEP_NS 1000000LL /* the least that patience comes to; and that work on another GPU may stand still for */
/* A turn is passed on before a sleep longer than this; for a shorter one the hand-over costs more than it gives. */
#define SHORT_SLEEP_NS 500000LL
#define LOOK_AGAIN_NS 200000LL      /* between looks at what the container's other GPUs do */
#define LOOK_NS 1000000LL           /* between looks: what is in flight may take less than was expected of it */
#define LONGEST_SLEEP_NS 50000000LL /* after which the limit is looked at again: the host may have changed it */
#define SHORTEST_SLEEP_NS 20000LL
#define OVERRUN_TIMES 2 /* kernels of one name may take now one and now ten milliseconds */

/* ---- what is in flight ------------------------------------------------------------------------------------------- */

static int64_t stalled_ns(struct meter *meter, int64_t now_ns) {
  return get(meter->in_flight_batches) > 0 ? now_ns - get(meter->progress_ns) : 0;
}

static int64_t patience_ns(struct meter *meter) {
  int64_t patience_ns = get(meter->patience_ns);
  return patience_ns > 0 ? patience_ns : PATIENCE_NS;
}

/* When the work ends shows whether it had waited for a launch that was let through: then the patience halves. If not,
 * the work just takes long, and is waited for longer. */
void gate_note_progress(struct meter *meter, int64_t end_ns, int64_t now_ns) {
  int64_t opened_ns = swap(meter->valve_opened_ns, 0);
  set(meter->progress_ns, now_ns);
  set(meter->valve_passed, 0);
  if (opened_ns == 0)
    return;
  int64_t before_ns = patience_ns(meter);
  bool set_free = end_ns - opened_ns < before_ns / 4;
  set(meter->patience_ns, set_free ? max(before_ns / 2, STEP_NS) : min(2 * before_ns, MOST_PATIENCE_NS));
}

static bool valve_opens(struct meter *meter, int64_t now_ns) {
  int64_t ends = stalled_ns(meter, now_ns) / patience_ns(meter);
  if (ends <= 0)
    return false;
  int64_t most = (1LL << min(ends, DOUBLINGS)) - 1 + max(ends - DOUBLINGS, 0) * (1LL << DOUBLINGS);
  if (add(meter->valve_passed, 1) >= (uint32_t)min(most, UINT32_MAX)) {
    add(meter->valve_passed, (uint32_t)-1);
    return false;
  }
  static int said;
  log_once(&said, LOG_INFO, "GPU work in flight makes no progress; launches go on without waiting for it");
  int64_t closed = 0;
  replace(meter->valve_opened_ns, closed, now_ns);
  return true;
}

/* A part of what is in flight, so that its end is not slept through. */
static void sleep_a_little(struct meter *meter) {
  meter->driver->sleep_ns(min(max(get(meter->in_flight_ns) / 32, SHORTEST_SLEEP_NS), LOOK_NS));
}

/* ---- turns
 * ----------------------------------------------------------------------------------------------------------- */

static bool in_company(struct meter *meter, const struct meter_terms *terms) {
  return meter->takes_turns && terms->takes_turns && turns_have_company(&meter->turns);
}

/* For how long what is in flight should still take. */
static int64_t left_ns(struct meter *meter) {
  return get(meter->progress_ns) + get(meter->in_flight_ns) - meter->driver->now_ns();
}

/* The next one is to find the GPU free: if two were there at once, each would be measured with the other's time. */
static void drain_and_pass(struct meter *meter) {
  meter_close_all(meter);
  int64_t give_up_ns = meter->driver->now_ns() + PATIENCE_NS;
  meter_harvest(meter);
  while (get(meter->in_flight_batches) > 0 && meter->driver->now_ns() < give_up_ns) {
    int64_t expected_ns = left_ns(meter);
    turns_announce_pass(&meter->turns, meter->driver->now_ns() + max(expected_ns, 0));
    if (expected_ns > METER_LATE_NS) /* the last moment is not slept through: a sleep ends late */
      meter->driver->sleep_ns(min(min(expected_ns / 4, expected_ns - METER_LATE_NS), LOOK_NS));
    else if (expected_ns < -METER_LATE_NS)
      sleep_a_little(meter);
    meter_harvest(meter);
  }
  turns_pass(&meter->turns);
}

void gate_note_activity(struct meter *meter, int64_t more_ns) {
  int64_t at_most_ns = OVERRUN_TIMES * get(meter->in_flight_ns) + more_ns;
  if (meter->takes_turns)
    turns_note_activity(&meter->turns, meter->driver->now_ns() + at_most_ns);
}

/* ---- the gate
 * ---------------------------------------------------------------------------------------------------------- */

enum obstacle { NOTHING, PAUSE, TOKENS, TURN, ROOM };

struct wait {
  struct meter_stream *stream;
  struct meter_terms terms;
  bool in_company, is_free, gives_way, without_turn;
  int64_t cost_ns, now_ns, sleep_ns, held_ns, tokens_ns, for_turn_ns;
};

/* More than the bucket holds would overflow it, and be lost. */
static int64_t quantum_wall_ns(const struct wait *wait) {
  int64_t most_ns = bucket_wall_ns(BUCKET_BURST_NS * 9 / 10, wait->terms.percent);
  return min(wait->in_company ? bucket_wall_ns(QUANTUM_IN_COMPANY_NS, wait->terms.percent) : QUANTUM_WALL_NS, most_ns);
}

/* The GPUs of a container keep in step: work begins when all of them have tokens. While it is on one of them, the
 * others go on without until they have paid as much; and where it makes no progress there, as a collective that waits
 * for its partner, until they owe a burst. */
struct others {
  int64_t zero_at_ns; /* of the one that has paid the most */
  bool work, wait;
};

static struct others look_at_others(struct wait *wait, int64_t zero_at_ns) {
  struct meter *meter = wait->stream->meter;
  struct others others = {.zero_at_ns = zero_at_ns};
  bool in_step = false;
  for (int i = 0; meter->container != NULL && meter->container[i] != NULL; i++) {
    struct vgpu_device_shared other;
    if (meter->container[i] == meter->state || !device_state_is_used(meter->container[i]))
      continue;
    device_state_read(meter->container[i], &other);
    int64_t stalled_ns = wait->now_ns - other.at_work_since_ns;
    in_step |= other.last_launch_ns > wait->now_ns - TURNS_ACTIVE_NS;
    others.work |= stalled_ns < MOST_PATIENCE_NS;
    others.wait |= stalled_ns < MOST_PATIENCE_NS && stalled_ns > STEP_NS;
    others.zero_at_ns =
        max(others.zero_at_ns, bucket_zero_at(other.tokens_zero_at_ns, wait->now_ns, wait->terms.percent));
  }
  set(meter->in_step, in_step);
  return others;
}

static bool has_tokens(struct wait *wait) {
  struct meter *meter = wait->stream->meter;
  int64_t zero_at_ns = max(get(meter->paid_zero_at_ns), meter_container_zero_at_ns(meter));
  zero_at_ns = bucket_zero_at(zero_at_ns, wait->now_ns, wait->terms.percent);
  if (wait->is_free)
    return true;
  struct others others = look_at_others(wait, zero_at_ns);
  int64_t quantum_ns = quantum_wall_ns(wait);
  /* Not for longer than that: another process of the container may use the tokens as they come. */
  bool saves = wait->tokens_ns > 0 && wait->tokens_ns < 2 * quantum_ns;
  int64_t open_at_ns = others.zero_at_ns + (saves ? quantum_ns : 0);
  int64_t owes_ns = wait->now_ns + bucket_wall_ns(BUCKET_BURST_NS, wait->terms.percent);
  int64_t pays_ns = bucket_wall_ns(min(wait->cost_ns, BUCKET_BURST_NS / 2), wait->terms.percent);
  bool follows = (others.work && zero_at_ns + pays_ns <= min(others.zero_at_ns, owes_ns)) ||
                 (others.wait && zero_at_ns <= owes_ns);
  if (open_at_ns <= wait->now_ns || follows)
    return true;
  int64_t most_ns = get(meter->in_flight_batches) > 0 || wait->terms.yields ? LOOK_NS : LONGEST_SLEEP_NS;
  wait->sleep_ns = min(open_at_ns - wait->now_ns, get(meter->in_step) ? LOOK_AGAIN_NS : most_ns);
  return false;
}

/* Up to a thousand launches went by unmeasured before another tenant came. No turn is passed while they are there, and
 * what is added to them makes it last longer. */
static bool has_backlog(const struct wait *wait) {
  struct meter *meter = wait->stream->meter;
  int64_t since_ns = get(meter->measures_since_ns);
  return since_ns != 0 && wait->now_ns < since_ns + TURNS_PATIENCE_NS && meter_is_dry(wait->stream) &&
         !meter->driver->is_idle(wait->stream->handle);
}

static bool has_room(const struct wait *wait) {
  struct meter *meter = wait->stream->meter;
  uint32_t batches = get(meter->in_flight_batches);
  if (get(wait->stream->head) - get(wait->stream->tail) >= METER_RING)
    return false;
  if (wait->is_free && !wait->in_company)
    return true;
  if (get(meter->in_flight_unknown) > 0)
    return false;
  if (wait->gives_way)
    return batches < 1 || get(meter->in_flight_ns) < GIVES_WAY_NS;
  if (wait->in_company && get(meter->in_flight_ns) + wait->cost_ns > TURNS_SLICE_NS)
    return batches < 1;
  return batches < 2 || get(meter->in_flight_ns) < RUN_AHEAD_NS;
}

/* Work that does not end holds no turn: it is left to the GPU's own time-slicing. */
static bool has_turn(const struct wait *wait) {
  struct meter *meter = wait->stream->meter;
  if (!wait->in_company || wait->without_turn)
    return true;
  if (stalled_ns(meter, wait->now_ns) > max(patience_ns(meter), OVERRUN_TIMES * get(meter->in_flight_ns))) {
    turns_pass(&meter->turns);
    return true;
  }
  if (turns_must_pass(&meter->turns, get(meter->in_flight_ns)))
    drain_and_pass(meter);
  return turns_is_ours(&meter->turns);
}

static enum obstacle obstacle(struct wait *wait) {
  struct meter *meter = wait->stream->meter;
  wait->terms = meter_terms(meter);
  wait->in_company = in_company(meter, &wait->terms);
  wait->is_free = wait->terms.yields && !(wait->in_company && turns_are_wanted(&meter->turns));
  set(meter->is_free, wait->is_free);
  wait->gives_way = wait->in_company && turns_high_priority_is_there(&meter->turns);
  wait->now_ns = meter->driver->now_ns();
  if (wait->terms.paused)
    return PAUSE;
  if (!has_tokens(wait))
    return TOKENS;
  if (has_backlog(wait))
    return ROOM;
  return !has_turn(wait) ? TURN : !has_room(wait) ? ROOM : NOTHING;
}

static void sleep_without_turn(struct wait *wait) {
  struct meter *meter = wait->stream->meter;
  int64_t until_ns = wait->now_ns + wait->sleep_ns;
  if (wait->sleep_ns > SHORT_SLEEP_NS && wait->in_company && turns_is_ours(&meter->turns))
    drain_and_pass(meter);
  int64_t left_ns = until_ns - meter->driver->now_ns();
  if (left_ns > 0)
    meter->driver->sleep_ns(left_ns);
}

static void take_turn(struct wait *wait) {
  struct meter *meter = wait->stream->meter;
  static int said;
  wait->without_turn = !turns_take(&meter->turns);
  if (wait->without_turn)
    log_once(&said, LOG_INFO, "no turn on the GPU in %lld ms; going ahead without", TURNS_PATIENCE_NS / 1000000);
  set(meter->took_turn_ns, meter->driver->now_ns());
}

static void wait_for(struct wait *wait, enum obstacle what) {
  struct meter *meter = wait->stream->meter;
  if (what == PAUSE)
    wait->sleep_ns = LONGEST_SLEEP_NS / 2;
  if (what == TURN)
    take_turn(wait);
  else if (what == ROOM)
    sleep_a_little(meter);
  else
    sleep_without_turn(wait);
  if (meter->takes_turns)
    turns_note_presence(&meter->turns);
}

static void book_wait(struct vgpu_device_shared *shared, void *how) {
  const struct wait *wait = how;
  shared->gate_wait_ns += (uint64_t)wait->held_ns;
  if (wait->for_turn_ns > 0)
    wait_times_note(&shared->turn_waits, wait->now_ns, wait->for_turn_ns);
}

/* Room is not counted: there the GPU is busy with our own work. */
static void note_wait(struct wait *wait) {
  struct meter *meter = wait->stream->meter;
  if (wait->held_ns == 0)
    return;
  device_state_change(meter->state, book_wait, wait);
  if (meter->observer != NULL)
    meter->observer->waited(meter, wait->now_ns - wait->held_ns, wait->now_ns);
  beside_look(wait->stream);
}

struct gate_pass gate_wait(struct meter_stream *stream, int64_t cost_ns) {
  struct meter *meter = stream->meter;
  struct wait wait = {.stream = stream, .cost_ns = cost_ns};
  enum obstacle what;
  bool valve = false;
  while ((what = obstacle(&wait)) != NOTHING && !(what != PAUSE && (valve = valve_opens(meter, wait.now_ns)))) {
    meter_close_all(meter); /* other streams' batches: the wait would be measured in them */
    wait_for(&wait, what);
    meter_harvest(meter);
    int64_t took_ns = meter->driver->now_ns() - wait.now_ns;
    wait.tokens_ns += what == TOKENS ? took_ns : 0;
    wait.held_ns += what != ROOM ? took_ns : 0;
    wait.for_turn_ns += what == TURN ? took_ns : 0;
  }
  note_wait(&wait);
  gate_note_activity(meter, METER_BATCH_NS);
  int64_t longest_ns = wait.gives_way ? GIVES_WAY_NS : METER_BATCH_NS;
  return (struct gate_pass){.batch_ns = min(longest_ns, QUANTUM_WALL_NS * wait.terms.percent / 100),
                            .open_until_ns = wait.in_company ? wait.now_ns + METER_BATCH_NS : INT64_MAX,
                            .in_company = wait.in_company,
                            .is_one_launch = valve,
                            .is_free = wait.is_free};
}
