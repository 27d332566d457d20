/* Batches: launches join them, and they end. Only the thread that launched last on a stream queries and marks it:
 * another thread may be capturing it at any moment. */
#include "compute/meter.h"

#include "base/claim.h"
#include "base/log.h"
#include "compute/meter_parts.h"
#include "compute/outstanding.h"

#define CLAIM_TRIES 50
/* Every so many batches, a batch has a single launch, which is measured alone: where waits end the batches, or batches
 * are mixed, they do not show what each launch costs. */
#define SAMPLE_EVERY 16

/* ---- ends ------------------------------------------------------------------------------------------------------ */

/* Puts the ended batch into flight. The stream's ring has room for METER_RING ends; a batch that does not fit is taken
 * to have cost the usual. */
static void enter_flight(struct meter_stream *stream) {
  struct meter *meter = stream->meter;
  struct batch *batch = &stream->batch;
  uint32_t head = get(stream->head), tail = atomic_load_explicit(&stream->tail, memory_order_acquire);
  batch->paid_ns = batch->is_unknown ? METER_UNKNOWN_PAYS_NS : batch->estimate_ns;
  if (head - tail < METER_RING) {
    stream->ring[head % METER_RING] = *batch;
    if (add(meter->in_flight_batches, 1) == 0)
      set(meter->progress_ns, meter->driver->now_ns());
    add(meter->in_flight_ns, batch->estimate_ns);
    atomic_store_explicit(&stream->head, head + 1, memory_order_release);
  } else {
    meter_drop(stream, batch);
  }
  add(meter->to_pay_ns, batch->paid_ns);
  set(stream->had_ns, get(stream->had_ns) + batch->estimate_ns);
  set(meter->most_had_ns, max(get(meter->most_had_ns), get(stream->had_ns)));
  meter_harvest(meter);
}

/* Ends the batch: the GPU is done when the marker is or, without a marker, at end_ns, or up to late_ns before it. */
static void end_at(struct meter_stream *stream, void *marker, int64_t end_ns, int64_t late_ns) {
  stream->batch.end = marker;
  stream->batch.end_ns = end_ns;
  stream->batch.late_ns = late_ns;
  enter_flight(stream);
}

/* Ends the batch without a marker: the GPU finished it at an unknown earlier time. */
static void end_unobserved(struct meter_stream *stream) {
  end_at(stream, NULL, stream->meter->driver->now_ns(), INT64_MAX);
}

static void cannot_measure(struct meter *meter) {
  static int said;
  log_once(&said, LOG_WARNING, "GPU work on a stream cannot be measured; its compute limit is not enforced");
  for (int i = 0; i < meter->bucket_count; i++)
    device_state_not_enforced(meter->buckets[i].state, VGPU_NOT_ENFORCED_SM);
}

static void end_with_marker(struct meter_stream *stream) {
  const struct meter_driver *driver = stream->meter->driver;
  int64_t now_ns = driver->now_ns();
  bool is_capturing = driver->is_capturing(stream->handle);
  void *marker = is_capturing ? NULL : driver->record(stream->handle);
  if (marker == NULL && !is_capturing)
    cannot_measure(stream->meter);
  end_at(stream, marker, now_ns, marker == NULL ? INT64_MAX : 0);
  gate_note_activity(stream->meter, 0);
}

/* Ends the batch, without a marker on an idle stream: it does not say when it became idle. */
void meter_end_now(struct meter_stream *stream) {
  if (stream->meter->driver->is_idle(stream->handle))
    end_unobserved(stream);
  else
    end_with_marker(stream);
}

/* ---- claims ------------------------------------------------------------------------------------------------------ */

bool meter_claim_again(struct meter_stream *stream) {
  for (int tries = 0; tries < CLAIM_TRIES; tries++) {
    claim_pause();
    if (__atomic_load_n(&stream->claim, __ATOMIC_RELAXED) == 0 && claim_try(&stream->claim))
      return true;
  }
  return false;
}

bool meter_claim_patiently(const struct meter_driver *driver, int32_t *claim) {
  int64_t give_up_ns = driver->now_ns() + TURNS_PATIENCE_NS;
  bool mine;
  while (!(mine = claim_try(claim) || claim_recover(claim)) && driver->now_ns() < give_up_ns)
    driver->sleep_ns(METER_SHORT_SLEEP_NS);
  signals_release();
  return mine;
}

/* ---- launches -------------------------------------------------------------------------------------------------- */

bool meter_has_begun(struct meter *meter) {
  uint32_t count = atomic_load(&meter->stream_count);
  bool begun = get(meter->in_flight_batches) > 0;
  for (uint32_t i = 0; i < count && !begun; i++)
    begun = get(meter->streams[i]->open);
  return begun;
}

/* Marks the beginning of a launch that is measured alone: it begins on the host's clock and ends on the GPU's. Behind
 * other work it begins later, which is known. Until the two clocks have been compared so, all batches are queried. */
static void set_clock(struct meter_stream *stream) {
  const struct meter_driver *driver = stream->meter->driver;
  stream->batch.started_idle = !meter_has_begun(stream->meter) && driver->is_idle(stream->handle);
  stream->batch.start = driver->record(stream->handle);
  stream->batch.start_ns = driver->now_ns();
}

/* Leaves a batch open for a launch, or none where the launch cannot be measured. The caller holds the claim. */
static bool open_batch(struct meter_stream *stream, uint64_t work, int64_t *cost_ns) {
  struct meter *meter = stream->meter;
  struct batch *batch = &stream->batch;
  bool is_capturing = meter->driver->is_capturing(stream->handle);
  bool was_open = swap(stream->open, false);
  if (was_open && is_capturing)
    end_unobserved(stream);
  else if (was_open)
    meter_end_now(stream);
  if (is_capturing) /* what is captured is charged when its graph is launched */
    return false;
  *cost_ns = METER_RUN_AHEAD_NS;
  bool is_unknown = !meter_known_cost(meter, work, cost_ns);
  *batch = gate_wait(stream, *cost_ns);
  signals_release();
  if (meter_is_destroyed(stream)) /* meanwhile */
    return false;
  batch->is_unknown = is_unknown;
  bool is_sample = is_unknown || stream->batches++ % SAMPLE_EVERY == 0;
  if (is_sample)
    batch->most_launches = 1;
  if (is_sample || !get(stream->has_clock) || get(stream->is_behind))
    set_clock(stream);
  set(stream->open, true);
  return true;
}

/* Counts a launch in the open batch; true when the batch ends with it: as near to its full length as launches come. */
static inline __attribute__((always_inline)) bool join(struct meter_stream *stream, uint64_t work, int64_t cost_ns,
                                                       int64_t now_ns) {
  struct batch *batch = &stream->batch;
  batch->is_mixed |= batch->work != work && batch->launches > 0;
  batch->work = work;
  batch->estimate_ns += cost_ns;
  batch->launches++;
  batch->last_launch_ns = now_ns;
  set(stream->launcher, claim_this_thread());
  if (stream->observer != NULL)
    stream->observer->joined(batch, batch->is_unknown ? 0 : cost_ns);
  if (batch->estimate_ns + cost_ns / 2 < METER_BATCH_NS && batch->launches < batch->most_launches)
    return false;
  set(stream->open, false);
  return true;
}

/* Puts a launch into a new batch. The caller holds the claim, which ends here where the launch cannot be measured. */
static COLD bool launch_in_new_batch(struct meter_stream *stream, uint64_t work) {
  int64_t cost_ns;
  if (open_batch(stream, work, &cost_ns)) {
    stream->batch.began_ns = stream->meter->driver->now_ns();
    join(stream, work, cost_ns, stream->batch.began_ns);
    return true;
  }
  meter_unclaim(stream);
  return false;
}

/* True where the batch ends with the launch, or it is the batch's first. */
static inline bool launch_in_batch(struct meter_stream *stream, uint64_t work, int64_t now_ns) {
  if (__builtin_expect(!meter_claim(stream), 0)) { /* what is launched meanwhile would be in no batch */
    if (!meter_claim_patiently(stream->meter->driver, &stream->claim))
      return false;
    now_ns = stream->meter->driver->now_ns();
  }
  const struct batch *batch = &stream->batch;
  int64_t cost_ns;
  bool joins = get(stream->open) && now_ns < batch->open_until_ns && now_ns - batch->last_launch_ns < METER_SPARSE_NS &&
               meter_known_cost(stream->meter, work, &cost_ns);
  if (__builtin_expect(!joins, 0))
    return launch_in_new_batch(stream, work);
  bool ends = join(stream, work, cost_ns, now_ns);
  if (!ends)
    meter_unclaim(stream);
  return ends;
}

HOT bool meter_launch(struct meter_stream *stream, uint64_t work, int64_t now_ns) {
  if (!get(stream->meter->is_governed))
    return launch_in_batch(stream, work, now_ns);
  outstanding_launch(stream, now_ns);
  return true;
}

/* Called after the first or the last launch of a batch. A callback within the launch may have launched on the stream
 * itself, and taken the claim. */
HOT void meter_launched(struct meter_stream *stream) {
  if (get(stream->meter->is_governed))
    outstanding_launched(stream);
  if (__builtin_expect(!claim_is_own(&stream->claim), 0))
    return;
  struct batch *batch = &stream->batch;
  int64_t now_ns = stream->meter->driver->now_ns();
  if (stream->meter->launches_block) { /* then it is done, and has begun after it passed the gate */
    set(stream->open, false);
    end_at(stream, NULL, now_ns, 0);
  } else {
    batch->last_launch_ns = now_ns;
    if (batch->launches == 1)
      batch->began_ns = now_ns;
    if (!get(stream->open))
      end_with_marker(stream);
  }
  meter_unclaim(stream);
}

/* Tells whether the caller, who holds the claim, may work on the stream's batch: not within a launch on the stream. */
bool meter_may_touch(struct meter_stream *stream) {
  const struct meter_driver *driver = stream->meter->driver;
  return meter_launched_here(stream) && driver->is_here(get(stream->context)) && !driver->is_capturing(stream->handle);
}

/* Takes the open batch out of the stream to end it. False when there is none, when its last launch is younger than
 * age_ns or was another thread's, or when the calling thread may not use the stream's handle although the driver is to
 * be called with it. */
static bool claim_open(struct meter_stream *stream, int64_t age_ns, bool touches) {
  if (!get(stream->open) || !meter_launched_here(stream) || !meter_claim(stream))
    return false;
  bool is_old = age_ns == 0 || stream->meter->driver->now_ns() - stream->batch.last_launch_ns >= age_ns;
  bool mine = get(stream->open) && is_old && (touches ? meter_may_touch(stream) : meter_launched_here(stream));
  if (mine)
    set(stream->open, false);
  else
    meter_unclaim(stream);
  return mine;
}

static void close_older(struct meter_stream *stream, int64_t age_ns) {
  if (!claim_open(stream, age_ns, true))
    return;
  meter_end_now(stream);
  meter_unclaim(stream);
}

static void close_open(struct meter_stream *stream) {
  close_older(stream, 0);
}

void meter_close_all(struct meter *meter) {
  meter_for_each(meter, close_open);
}

static void end_open(struct meter_stream *stream) {
  close_open(stream);
  if (!get(stream->open) || !meter_claim(stream))
    return;
  if (swap(stream->open, false))
    end_unobserved(stream);
  meter_unclaim(stream);
}

void meter_end_all(struct meter *meter) {
  meter_for_each(meter, end_open);
}

/* ---- the program waits, or asks ---------------------------------------------------------------------------------- */

/* Ends a batch whose last launch is a while ago. For younger work the end of the wait, or a later poll, shows
 * completion well enough: a program that waits for short work is asked nothing more each time. */
void meter_before_wait(struct meter_stream *stream) {
  close_older(stream, METER_LATE_NS);
}

/* Ends the batch after a wait, which tells without a marker that the stream is idle. A batch that began with a marker
 * ends with one, too: the two tell how long it took. */
static void end_of_wait(struct meter_stream *stream, enum meter_wait wait, int64_t returned_ns) {
  if (!claim_open(stream, 0, wait == METER_STREAM_MAY_BE_BUSY))
    return;
  bool is_idle = wait == METER_STREAM_IS_IDLE || stream->meter->driver->is_idle(stream->handle);
  if (is_idle && stream->batch.start == NULL)
    end_at(stream, NULL, returned_ns, METER_LATE_NS);
  else
    end_with_marker(stream);
  meter_unclaim(stream);
}

void meter_after_poll(struct meter *meter) {
  meter_harvest(meter);
  if (meter->takes_turns && get(meter->in_flight_batches) == 0)
    turns_note_idleness(&meter->turns);
}

void meter_after_wait(struct meter_stream *stream, enum meter_wait wait, int64_t returned_ns) {
  end_of_wait(stream, wait, returned_ns);
  meter_after_poll(stream->meter);
}

void meter_before_wait_all(struct meter *meter) {
  meter_for_each(meter, meter_before_wait);
}

void meter_after_wait_all(struct meter *meter, int64_t returned_ns) {
  uint32_t count = atomic_load(&meter->stream_count);
  for (uint32_t i = 0; i < count; i++)
    end_of_wait(meter->streams[i], METER_STREAM_MAY_BE_BUSY, returned_ns);
  meter_after_poll(meter);
}
