#include "base/bucket.h"
#include "base/log.h"
#include "compute/meter_parts.h"
#include "shared/history.h"

/* Beside other tenants a turn has to be worth its hand-over: a launch that has waited for tokens waits on until this
 * many are there. Alone it waits on for this long, because the GPU idles for some microseconds each time that work
 * begins. */
#define QUANTUM_NS 8000000LL
#define MOST_AHEAD_NS (2 * TURNS_SLICE_NS) /* in GPU time: a process of its part, or one thread of another */
#define LONGEST_SLEEP_NS 50000000LL        /* after which the limit is looked at again: the host may have changed it */
#define BESIDE_HIGHER_NS 250000LL /* of work at a time where high priority is there, which waits for what has begun */
#define OVERRUN_TIMES 2           /* kernels of one name may take now one and now ten milliseconds */

struct wait {
  struct meter_stream *stream;
  struct meter *meter;
  struct meter_terms terms;
  struct turns_view others; /* none, where no turns are taken */
  bool is_free; /* nothing holds it back: nobody else wants the GPU, and no share within the tenant has a limit */
  int slowest;  /* the bucket that has no tokens for the longest time */
  int64_t cost_ns, began_ns, now_ns, sleep_ns, tokens_ns, for_turn_ns;
  bool took_turn;                   /* just now: it is not given away again before the launch */
  int64_t held_ns[VGPU_MAX_LEVELS]; /* by each bucket; all other waits are the tenant's */
  int noted;
};

/* ---- what is in flight ------------------------------------------------------------------------------------------- */

static int64_t stalled_ns(struct meter *meter, int64_t now_ns) {
  return get(meter->in_flight_batches) > 0 ? now_ns - get(meter->progress_ns) : 0;
}

/* Notes that work in flight has ended. If it ended soon after a held launch was released, it had waited for that
 * launch, and the patience halves. Otherwise, if the valve had opened, the work just takes long: the patience grows
 * much, for the work may have ended by chance. */
void gate_note_progress(struct meter *meter, int64_t end_ns) {
  int64_t released_ns = swap(meter->valve.released_ns, 0), before_ns = get(meter->valve.patience_ns);
  bool valve_opened = swap(meter->valve.passed, 0) > 0;
  set(meter->progress_ns, max(get(meter->progress_ns), end_ns));
  set(meter->valve.held_since_ns, 0);
  if (released_ns != 0 && end_ns - released_ns < before_ns / 4)
    set(meter->valve.patience_ns, max(before_ns / 2, METER_REFRESH_NS));
  else if (valve_opened)
    set(meter->valve.patience_ns, min(4 * before_ns, TURNS_PATIENCE_NS));
}

/* Notes that a held launch goes on, let go by the valve or by tokens. Tokens may come first, each time somewhat later,
 * since the wait is charged as work. A launch that was hardly held is not evidence: it may have come just before the
 * work ended anyway. */
static void note_release(struct meter *meter, int64_t held_since_ns, bool by_valve) {
  int64_t now_ns = meter->driver->now_ns(), none = 0;
  if (by_valve || min(now_ns - held_since_ns, stalled_ns(meter, now_ns)) >= get(meter->valve.patience_ns) / 2)
    replace(meter->valve.released_ns, none, now_ns);
}

/* Returns how long to wait for work that makes no progress: as long as it should take or, if it was seen to wait for
 * what is held here, the shorter patience. */
static int64_t patience_ns(struct meter *meter) {
  int64_t patience_ns = get(meter->valve.patience_ns);
  int64_t expected_ns = min(OVERRUN_TIMES * get(meter->in_flight_ns), TURNS_PATIENCE_NS);
  return patience_ns < METER_PATIENCE_NS ? patience_ns : max(patience_ns, expected_ns);
}

/* Lets a launch through where the work in flight has made no progress since the launch was held: before that it cannot
 * have waited for the launch. */
static bool valve_opens(const struct wait *wait) {
  struct meter *meter = wait->meter;
  int64_t none = 0;
  if (stalled_ns(meter, wait->now_ns) <= 0)
    return false;
  replace(meter->valve.held_since_ns, none, wait->now_ns);
  int64_t held_ns = wait->now_ns - max(get(meter->valve.held_since_ns), get(meter->progress_ns));
  int64_t ends = held_ns / patience_ns(meter);
  if (get(meter->valve.passed) >= ends * ends)
    return false;
  static int said;
  log_once(&said, LOG_INFO, "GPU work in flight makes no progress; launches go on without waiting for it");
  add(meter->valve.passed, 1);
  return true;
}

/* Returns how much longer the work in flight should take. */
static int64_t left_ns(struct meter *meter) {
  return get(meter->progress_ns) + get(meter->in_flight_ns) - meter->driver->now_ns();
}

/* Returns the time by which the work in flight is done at the latest. It may be past. */
static int64_t idle_at_ns(struct meter *meter) {
  return get(meter->progress_ns) + OVERRUN_TIMES * get(meter->in_flight_ns);
}

/* Sleeps for a part of the time that is left, and for less where streams run side by side, so as not to sleep through
 * the end of the work. */
static void sleep_a_little(struct meter *meter) {
  int64_t part_ns = min(left_ns(meter) / 4, get(meter->in_flight_ns) / 32);
  meter->driver->sleep_ns(min(max(part_ns, METER_SHORT_SLEEP_NS), METER_REFRESH_NS));
}

/* ---- turns ------------------------------------------------------------------------------------------------------- */

/* The meters of the process, whose GPUs keep in step. */
static struct meter *_Atomic *meters_in_step(const struct wait *wait) {
  static struct meter *_Atomic none[1];
  return wait->terms.is_apart || wait->meter->others == NULL ? none : wait->meter->others;
}

/* Returns how long the work in flight needs. Work that this process has begun on another GPU may wait for the launch
 * that is held here, as kernels of a collective do: the other GPU's slices would be lost if this launch waited for
 * those of other tenants. */
static int64_t needs_ns(const struct wait *wait) {
  bool begun = false;
  struct meter *other;
  for (struct meter *_Atomic *next = meters_in_step(wait); (other = atomic_load(next)) != NULL; next++)
    begun |= other != wait->meter && meter_has_begun(other);
  return get(wait->meter->in_flight_ns) - (begun ? METER_BATCH_NS : 0);
}

/* Passes the turns on the other GPUs too, unless work has begun there: the next tenant may need all of them at once.
 * */
static void pass(const struct wait *wait) {
  struct meter *other;
  turns_pass(&wait->meter->turns);
  for (struct meter *_Atomic *next = meters_in_step(wait); (other = atomic_load(next)) != NULL; next++)
    if (other->takes_turns && !meter_has_begun(other))
      turns_pass(&other->turns);
}

void gate_note_activity(struct meter *meter, int64_t more_ns) {
  if (meter->takes_turns)
    turns_note_activity(&meter->turns, max(idle_at_ns(meter), meter->driver->now_ns()) + more_ns);
}

/* Waits until our work has drained, then passes the turn: the next tenant has to find the GPU free, or each would be
 * measured with the other's time. */
static void drain_and_pass(const struct wait *wait) {
  struct meter *meter = wait->meter;
  int64_t now_ns = meter->driver->now_ns();
  meter_close_all(meter);
  meter_harvest(meter);
  if (get(meter->in_flight_batches) > 0)
    turns_note_drain(&meter->turns, get(meter->progress_ns), idle_at_ns(meter));
  while (get(meter->in_flight_batches) > 0 && stalled_ns(meter, now_ns) < patience_ns(meter)) {
    int64_t expected_ns = left_ns(meter);
    if (expected_ns > METER_LATE_NS || expected_ns < -METER_LATE_NS) /* the last moment is not slept through */
      sleep_a_little(meter);
    meter_harvest(meter);
    now_ns = meter->driver->now_ns();
  }
  pass(wait);
}

/* Work that does not end holds no turn: it is left to the GPU's own time-slicing. */
static bool has_turn(const struct wait *wait) {
  struct meter *meter = wait->meter;
  if (!wait->others.company)
    return true;
  if (stalled_ns(meter, wait->now_ns) > patience_ns(meter)) {
    turns_pass(&meter->turns);
    return true;
  }
  if (!wait->took_turn && turns_must_pass(&meter->turns, needs_ns(wait)))
    drain_and_pass(wait);
  return turns_is_ours(&meter->turns);
}

/* ---- tokens ------------------------------------------------------------------------------------------------------ */

bool gate_is_in_step(struct meter *meter, int64_t now_ns) {
  return get(meter->contention.others_at_ns) > now_ns - TURNS_PATIENCE_NS;
}

/* The GPUs of a share keep in step: work begins when all of them have tokens. While it is on one of them, the
 * others go on without until they have paid as much; and where it makes no progress there, as a collective that waits
 * for its partner, until they owe a burst. Where all had tokens a moment ago, nobody is asked again. */
static bool goes_in_step(struct wait *wait, struct meter_bucket *bucket, int64_t zero_at_ns, int64_t *open_at_ns) {
  struct device_state *const *others = bucket->others;
  uint32_t percent = get(bucket->percent);
  int64_t now_ns = wait->now_ns, owes_ns = now_ns + bucket_wall_ns(BUCKET_BURST_NS, percent);
  int64_t pays_ns = bucket_wall_ns(wait->cost_ns, percent), others_zero_at_ns = 0;
  bool others_work = false, others_wait = false;
  *open_at_ns = max(zero_at_ns, get(bucket->others_zero_at_ns));
  if (now_ns - get(bucket->others_refreshed_ns) < METER_REFRESH_NS && *open_at_ns <= now_ns)
    return true;
  for (int i = 0; !wait->terms.is_apart && others != NULL && others[i] != NULL; i++) {
    struct vgpu_device_shared other;
    if (others[i] == bucket->state || !device_state_is_used(others[i], now_ns))
      continue;
    device_state_read(others[i], &other);
    int64_t stalled_ns = now_ns - other.at_work_since_ns;
    others_work |= stalled_ns < TURNS_PATIENCE_NS;
    others_wait |= stalled_ns < TURNS_PATIENCE_NS && stalled_ns > METER_REFRESH_NS;
    others_zero_at_ns = max(others_zero_at_ns, bucket_zero_at(other.tokens_zero_at_ns, now_ns, percent));
    set(wait->meter->contention.others_at_ns,
        max(get(wait->meter->contention.others_at_ns), min(other.last_launch_ns, now_ns)));
  }
  set(bucket->others_zero_at_ns, others_zero_at_ns);
  set(bucket->others_refreshed_ns, now_ns);
  *open_at_ns = max(zero_at_ns, others_zero_at_ns);
  return (others_work && zero_at_ns + pays_ns <= min(*open_at_ns, owes_ns)) || (others_wait && zero_at_ns <= owes_ns);
}

/* Updates ahead_ns: this process's GPU time less its fair part of what the container has used. */
void gate_note_busy(struct meter_bucket *bucket, const struct vgpu_device_shared *shared, int64_t own_ns) {
  uint64_t before_ns = swap(bucket->busy_ns, shared->busy_ns);
  int64_t all_ns = before_ns > 0 ? (int64_t)min(shared->busy_ns - before_ns, (uint64_t)BUCKET_MOST_DEBT_NS) : own_ns;
  int64_t ahead_ns = get(bucket->ahead_ns) + own_ns - all_ns / (get(bucket->meter->contention.siblings) + 1);
  set(bucket->ahead_ns, max(min(ahead_ns, MOST_AHEAD_NS), -MOST_AHEAD_NS));
}

/* Returns the time at which the bucket stands at zero, by what this process has paid and what all had paid a moment
 * ago. */
static int64_t zero_at_ns(struct meter_bucket *bucket, int64_t now_ns) {
  struct vgpu_device_shared shared;
  if (now_ns - get(bucket->refreshed_ns) >= METER_REFRESH_NS) {
    device_state_read(bucket->state, &shared);
    set(bucket->zero_at_ns, shared.tokens_zero_at_ns);
    set(bucket->refreshed_ns, now_ns);
    gate_note_busy(bucket, &shared, 0);
  }
  int64_t zero_at_ns = max(get(bucket->paid_zero_at_ns), get(bucket->zero_at_ns));
  return bucket_zero_at(zero_at_ns, now_ns, get(bucket->percent));
}

/* Returns the time at which the slowest bucket has tokens; 0, which is long ago, where all of them let the launch
 * through. */
static int64_t open_at_ns(struct wait *wait) {
  struct meter *meter = wait->meter;
  int64_t latest_ns = 0, at_ns;
  for (int i = get(meter->contention.is_free) ? 1 : 0; i < meter->bucket_count; i++) {
    struct meter_bucket *bucket = &meter->buckets[i];
    if (goes_in_step(wait, bucket, zero_at_ns(bucket, wait->now_ns), &at_ns) || at_ns <= latest_ns)
      continue;
    latest_ns = at_ns;
    wait->slowest = i;
  }
  return latest_ns;
}

/* Carries what a thread has had from stream to stream: on many streams it gets no more than another thread on one. */
static void carry_account(struct meter_stream *stream) {
  struct meter *meter = stream->meter;
  uint32_t count = atomic_load(&meter->stream_count);
  int64_t most_ns = get(meter->most_had_ns), had_ns = max(get(stream->had_ns), most_ns - MOST_AHEAD_NS);
  for (uint32_t i = 0; i < count && had_ns < most_ns; i++)
    if (meter_launched_here(meter->streams[i]))
      had_ns = max(had_ns, get(meter->streams[i]->had_ns));
  set(stream->had_ns, had_ns);
}

/* Tells whether this thread goes next. Of threads that wait for tokens, the one that has had least goes first; a
 * longer wait counts as having had as much less, so that no thread waits for ever. A signal handler may take a thread
 * out of its wait: its place is kept for as long as it could have slept, and some time more. */
static bool is_next(const struct wait *wait) {
  struct meter *meter = wait->meter;
  uint32_t count = atomic_load(&meter->stream_count), percent = get(meter->buckets[wait->slowest].percent);
  bool next = true;
  for (uint32_t i = 0; i < count && next && get(meter->waits_until_ns) > wait->now_ns; i++) {
    struct meter_stream *other = meter->streams[i];
    int64_t later_ns = (get(other->waits_since_ns) - wait->began_ns) * percent / 100;
    next = get(other->waits_until_ns) <= wait->now_ns || get(other->had_ns) + later_ns >= get(wait->stream->had_ns);
  }
  return next;
}

/* Returns how many tokens to wait for. A process that has had less than its part of what the container had waits for
 * fewer, and so goes first: if all waited for as many, the same one could be first for seconds. Alone, the same goes
 * for threads of the process. */
static int64_t quantum_ns(const struct wait *wait) {
  const struct meter_bucket *bucket = &wait->meter->buckets[wait->slowest];
  int64_t behind_ns = get(wait->meter->most_had_ns) - get(wait->stream->had_ns);
  if (!wait->others.company)
    return max(QUANTUM_NS - QUANTUM_NS * behind_ns / MOST_AHEAD_NS, 0);
  return bucket_wall_ns(QUANTUM_NS + QUANTUM_NS * get(bucket->ahead_ns) / MOST_AHEAD_NS, get(bucket->percent));
}

static bool has_tokens(struct wait *wait) {
  struct meter *meter = wait->meter;
  int64_t open_ns = wait->is_free ? 0 : open_at_ns(wait);
  bool next = wait->is_free || is_next(wait);
  wait->sleep_ns = open_ns + (wait->tokens_ns > 0 || !next ? quantum_ns(wait) : 0) - wait->now_ns;
  if (wait->sleep_ns <= 0 && next)
    return true;
  wait->sleep_ns = max(wait->sleep_ns, next ? 0 : METER_LATE_NS); /* the next one may be about to wake up */
  bool refreshes = get(meter->in_flight_batches) > 0 || gate_is_in_step(meter, wait->now_ns) || wait->terms.yields;
  wait->sleep_ns = min(wait->sleep_ns, refreshes ? METER_REFRESH_NS : LONGEST_SLEEP_NS);
  return false;
}

/* ---- room -------------------------------------------------------------------------------------------------------- */

/* Tells whether there is time to check for contention. The check takes half a millisecond; while the GPU is divided,
 * work drains for it now and then. */
static bool has_time_to_check(const struct wait *wait, int64_t held_ns) {
  struct meter *meter = wait->meter;
  bool is_due =
      get(meter->contention.mixed_until_ns) > wait->now_ns && get(meter->contention.check_at_ns) <= wait->now_ns;
  return !wait->others.is_contended && (is_due || held_ns >= METER_REFRESH_NS);
}

static bool has_room(const struct wait *wait) {
  struct meter *meter = wait->meter;
  uint32_t batches = get(meter->in_flight_batches);
  int64_t in_flight_ns = get(meter->in_flight_ns);
  if (get(wait->stream->head) - get(wait->stream->tail) >= METER_RING)
    return false;
  if (batches < 1 || (wait->is_free && !wait->others.company))
    return true;
  if (has_time_to_check(wait, 0))
    return false;
  if (wait->others.company && in_flight_ns + wait->cost_ns > TURNS_SLICE_NS)
    return false;
  if (wait->others.higher_priority)
    return left_ns(meter) < BESIDE_HIGHER_NS && in_flight_ns + wait->cost_ns < METER_BATCH_NS;
  return batches < 2 || in_flight_ns < METER_RUN_AHEAD_NS;
}

/* Returns how many launches the batch that passes the gate may have, by the cost of the first. */
static uint32_t most_launches(const struct wait *wait, bool is_let_go) {
  if (is_let_go)
    return 1;
  return wait->others.higher_priority ? (uint32_t)max(BESIDE_HIGHER_NS / wait->cost_ns, 1) : METER_BATCH_LAUNCHES;
}

/* ---- contention with work without a turn ------------------------------------------------------------------------- */

/* Tells whether a marker with nothing of ours before it is late. It is done in a fraction of a millisecond, unless
 * others work: then only when their slice of the GPU's own time-slicing has ended, which is two milliseconds, while a
 * switch between tenants takes less than METER_REFRESH_NS. The last question is asked after the time: if the host held
 * us up, the GPU was on time. */
static bool is_late(struct meter_stream *stream) {
  const struct meter_driver *driver = stream->meter->driver;
  void *marker = driver->record(stream->handle);
  if (marker == NULL)
    return false;
  int64_t began_ns = driver->now_ns(), now_ns;
  bool pending;
  do {
    now_ns = driver->now_ns();
    pending = driver->query(marker) == METER_PENDING;
  } while (pending && now_ns - began_ns < METER_REFRESH_NS);
  driver->recycle(marker);
  return pending;
}

/* Checks for contention now and then, while nothing of ours is on the GPU: after a wait, and while the GPU is divided,
 * so that a program that pays half and waits for nothing notices its end. A late marker may have other reasons: it
 * counts, for a while, when the one before was late too, and until two were not. */
static void check_contention(struct meter_stream *stream) {
  struct meter *meter = stream->meter;
  int64_t now_ns = meter->driver->now_ns(), check_at_ns = get(meter->contention.check_at_ns);
  if (now_ns < check_at_ns || meter_has_begun(meter) || !meter->driver->is_idle(get(stream->handle)) ||
      !replace(meter->contention.check_at_ns, check_at_ns, now_ns + LONGEST_SLEEP_NS))
    return;
  bool late = is_late(stream);
  if (late == get(meter->contention.was_late))
    set(meter->contention.mixed_until_ns, late ? now_ns + TURNS_PATIENCE_NS : 0);
  else /* is the next one, too? */
    set(meter->contention.check_at_ns, now_ns);
  set(meter->contention.was_late, late);
}

/* ---- the gate ---------------------------------------------------------------------------------------------------- */

enum obstacle { NOTHING, PAUSE, TOKENS, TURN, ROOM };

static enum obstacle obstacle(struct wait *wait) {
  struct meter *meter = wait->meter;
  wait->terms = meter_terms(meter);
  wait->sleep_ns = LONGEST_SLEEP_NS;
  bool takes_turns = meter->takes_turns && wait->terms.takes_turns;
  wait->others = takes_turns ? turns_refresh(&meter->turns) : (struct turns_view){0};
  wait->now_ns = meter->driver->now_ns();
  wait->is_free = wait->terms.yields && !wait->others.wanted;
  set(meter->contention.is_free, wait->is_free);
  set(meter->contention.siblings, wait->others.siblings);
  for (int i = 1; i < meter->bucket_count; i++)
    wait->is_free &= wait->terms.percents[i] >= VGPU_NO_SM_LIMIT;
  if (wait->terms.paused)
    return PAUSE;
  if (!has_tokens(wait))
    return TOKENS;
  return !has_turn(wait) ? TURN : !has_room(wait) ? ROOM : NOTHING;
}

static void look_for_others(struct meter *meter) {
  if (meter->takes_turns)
    turns_look(&meter->turns);
}

/* Waits for what is in the way. The turn is passed on before a longer sleep; for a shorter one the hand-over costs
 * more than it gives. */
static void wait_for(struct wait *wait, enum obstacle what) {
  struct meter *meter = wait->meter;
  int64_t until_ns = wait->now_ns + wait->sleep_ns;
  set(wait->stream->waits_since_ns, wait->began_ns);
  set(wait->stream->waits_until_ns, what == TOKENS ? until_ns + LONGEST_SLEEP_NS : 0);
  set(meter->waits_until_ns, max(get(meter->waits_until_ns), get(wait->stream->waits_until_ns)));
  wait->took_turn = what == TURN;
  if (what == TURN)
    turns_take(&meter->turns);
  else if (what == ROOM) {
    look_for_others(meter);
    sleep_a_little(meter);
  } else {
    if (wait->sleep_ns >= METER_REFRESH_NS && wait->others.company && turns_is_ours(&meter->turns))
      drain_and_pass(wait);
    if (wait->sleep_ns >= 2 * METER_REFRESH_NS)
      look_for_others(meter);
    int64_t left_ns = until_ns - meter->driver->now_ns();
    if (left_ns > 0)
      meter->driver->sleep_ns(left_ns);
  }
  if (meter->takes_turns)
    turns_note_presence(&meter->turns);
}

static void book_wait(struct vgpu_device_shared *shared, void *how) {
  const struct wait *wait = how;
  shared->throttled_ns += (uint64_t)wait->held_ns[wait->noted];
  if (wait->noted == 0 && wait->for_turn_ns > 0)
    wait_times_note(&shared->turn_waits, wait->now_ns, wait->for_turn_ns);
}

/* Notes the waits. Waits for room do not count: there the GPU is busy with our own work. */
static void note_wait(struct wait *wait) {
  struct meter *meter = wait->meter;
  int64_t held_ns = 0;
  for (int i = 0; i < meter->bucket_count; held_ns += wait->held_ns[i++])
    if (wait->held_ns[i] > 0) {
      wait->noted = i;
      device_state_change(meter->buckets[i].state, book_wait, wait);
    }
  if (held_ns > 0 && meter->observer != NULL)
    meter->observer->waited(meter, wait->now_ns - held_ns, wait->now_ns);
  if (has_time_to_check(wait, held_ns))
    check_contention(wait->stream);
}

struct batch gate_wait(struct meter_stream *stream, int64_t cost_ns) {
  struct meter *meter = stream->meter;
  struct wait wait = {.stream = stream, .meter = meter, .cost_ns = cost_ns, .began_ns = meter->driver->now_ns()};
  carry_account(stream);
  enum obstacle what;
  bool valve = false;
  while ((what = obstacle(&wait)) != NOTHING) {
    meter_close_all(meter); /* other streams' batches: the wait would be measured in them */
    meter_harvest(meter);   /* what is done waits for no launch */
    valve = what != PAUSE && valve_opens(&wait);
    if (valve)
      break;
    wait_for(&wait, what);
    meter_harvest(meter);
    int64_t took_ns = meter->driver->now_ns() - wait.now_ns;
    wait.tokens_ns += what == TOKENS ? took_ns : 0;
    wait.held_ns[what == TOKENS ? wait.slowest : 0] += what != ROOM ? took_ns : 0;
    wait.for_turn_ns += what == TURN ? took_ns : 0;
  }
  set(stream->waits_until_ns, 0);
  int64_t longest_ns = min(max(wait.for_turn_ns, get(meter->contention.turn_wait_ns)), TURNS_LONGEST_NS);
  set(meter->contention.turn_wait_ns, wait.others.company ? longest_ns : 0);
  note_wait(&wait);
  note_release(meter, wait.began_ns, valve);
  gate_note_activity(meter, METER_BATCH_NS);
  set(stream->is_free, wait.is_free && !wait.others.company);
  return (struct batch){.open_until_ns = wait.others.company ? wait.now_ns + METER_BATCH_NS : INT64_MAX,
                        .in_company = wait.others.another_tenant,
                        .most_launches = most_launches(&wait, valve)};
}
