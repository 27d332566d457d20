/* Batches: launches join them, and they end. */
#include "meter.h"

#include "gate.h"
#include "log.h"
#include "meter_parts.h"
#include "signals.h"

#define CLAIM_TRIES 50
#define OTHER_THREAD_NS 20000
/* Where waits end the batches, or batches are mixed, what each launch costs does not show. So one batch of so many ends
 * after a random number of launches, and the next one has a single launch, which is measured alone. */
#define SAMPLE_EVERY 16

/* ---- ends ------------------------------------------------------------------------------------------------------ */

static uint32_t usual_launches(const struct batch *batch) {
  return batch->launches > 0 ? batch->launches : 1;
}

/* The ring of the stream has no place for more than METER_RING ends: what does not fit is taken to be as usual. */
static void enter_flight(struct meter_stream *stream) {
  struct meter *meter = stream->meter;
  struct batch *batch = &stream->batch;
  uint32_t head = get(stream->head), tail = atomic_load_explicit(&stream->tail, memory_order_acquire);
  batch->paid_ns = batch->is_unknown ? METER_UNKNOWN_PAYS_NS : batch->estimate_ns;
  stream->usual_launches = usual_launches(batch);
  if (head - tail < METER_RING) {
    stream->ring[head % METER_RING] = *batch;
    if (add(meter->in_flight_batches, 1) == 0)
      set(meter->progress_ns, meter->driver->now_ns());
    add(meter->in_flight_unknown, batch->is_unknown);
    add(meter->in_flight_ns, meter_expected_ns(batch));
    atomic_store_explicit(&stream->head, head + 1, memory_order_release);
  } else {
    meter_recycle(stream, batch->start);
    meter_recycle(stream, batch->end);
  }
  meter_settle(meter, batch->paid_ns);
}

void meter_end_at(struct meter_stream *stream, int64_t end_ns, int64_t late_ns) {
  stream->batch.end = NULL;
  stream->batch.end_ns = end_ns;
  stream->batch.late_ns = late_ns;
  enter_flight(stream);
}

void meter_end_unseen(struct meter_stream *stream) {
  meter_end_at(stream, stream->meter->driver->now_ns(), INT64_MAX);
}

static void cannot_measure(struct meter *meter) {
  static int said;
  log_once(&said, LOG_WARNING, "GPU work on a stream cannot be measured; its compute limit is not enforced");
  meter_not_enforced(meter, VGPU_NOT_ENFORCED_SM);
}

void meter_end_with_marker(struct meter_stream *stream) {
  const struct meter_driver *driver = stream->meter->driver;
  struct batch *batch = &stream->batch;
  batch->end_ns = driver->now_ns();
  batch->late_ns = 0;
  bool is_capturing = driver->is_capturing(stream->handle);
  batch->end = is_capturing ? NULL : driver->record(stream->handle);
  if (batch->end == NULL && !is_capturing)
    cannot_measure(stream->meter);
  if (batch->end == NULL) {
    meter_end_unseen(stream);
    return;
  }
  enter_flight(stream);
  gate_note_activity(stream->meter, 0);
}

/* Since when a stream is idle, nobody can tell. */
void meter_end_now(struct meter_stream *stream) {
  if (stream->meter->driver->is_idle(stream->handle))
    meter_end_unseen(stream);
  else
    meter_end_with_marker(stream);
}

/* ---- launches -------------------------------------------------------------------------------------------------- */

static uint32_t most_launches(struct meter_stream *stream) {
  if (stream->to_sample-- > 1)
    return METER_BATCH_LAUNCHES;
  if (stream->to_sample == 0) {
    stream->random = stream->random * 1664525 + 1013904223;
    return 1 + (uint32_t)((uint64_t)stream->random * stream->usual_launches >> 32);
  }
  stream->to_sample = SAMPLE_EVERY;
  return 1;
}

bool meter_is_at_rest(struct meter_stream *stream) {
  struct meter *meter = stream->meter;
  uint32_t count = atomic_load(&meter->stream_count);
  bool rests = get(meter->in_flight_batches) == 0;
  for (uint32_t i = 0; i < count && rests; i++)
    rests = !get(meter->streams[i]->open);
  return rests && meter->driver->is_idle(stream->handle);
}

/* A launch that is measured alone begins on the clock of the host and ends on that of the GPU. */
static void set_clock(struct meter_stream *stream) {
  const struct meter_driver *driver = stream->meter->driver;
  if (!meter_is_at_rest(stream))
    return;
  stream->batch.start = driver->record(stream->handle);
  stream->batch.start_ns = driver->now_ns();
}

/* With the claim held, before a launch: leaves a batch open for it, or none where it cannot be measured. */
static bool open_batch(struct meter_stream *stream, uint64_t work) {
  struct meter *meter = stream->meter;
  int64_t cost_ns;
  if (meter->driver->is_capturing(stream->handle)) { /* what is captured is charged when its graph is launched */
    if (get(stream->open)) {
      set(stream->open, false);
      meter_end_unseen(stream);
    }
    return false;
  }
  if (swap(stream->open, false))
    meter_end_now(stream);
  bool is_unknown = !meter_known_cost(meter, work, &cost_ns);
  struct gate_pass pass = gate_wait(stream, is_unknown ? 0 : cost_ns);
  signals_release();
  if (meter_is_destroyed(stream)) /* meanwhile */
    return false;
  stream->batch = (struct batch){.full_ns = pass.batch_ns,
                                 .open_until_ns = pass.open_until_ns,
                                 .in_company = pass.in_company,
                                 .turn_began_ns = swap(meter->took_turn_ns, 0),
                                 .is_unknown = is_unknown,
                                 .most_launches = is_unknown || pass.is_one_launch ? 1 : most_launches(stream)};
  if (stream->batch.most_launches == 1)
    set_clock(stream);
  set(stream->is_free, pass.is_free);
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
    stream->observer->joined(batch, cost_ns);
  if (batch->estimate_ns + cost_ns / 2 < batch->full_ns && batch->launches < batch->most_launches)
    return false;
  set(stream->open, false);
  return true;
}

/* While another thread is at the gate for this stream, or closes its batch: what is launched before it is through
 * would be in no batch. False when that takes too long. A claim that the thread has itself is of a launch that it has
 * left. */
static SELDOM bool claim_patiently(struct meter_stream *stream, int64_t *now_ns) {
  const struct meter_driver *driver = stream->meter->driver;
  int64_t give_up_ns = *now_ns + TURNS_PATIENCE_NS;
  while (!meter_claim(stream) && !claim_recover(&stream->claim) && *now_ns < give_up_ns) {
    driver->sleep_ns(OTHER_THREAD_NS);
    *now_ns = driver->now_ns();
  }
  signals_release();
  return claim_is_own(&stream->claim);
}

/* With the claim held, which ends here where the launch cannot be measured. */
static SELDOM bool launch_in_new_batch(struct meter_stream *stream, uint64_t work) {
  int64_t cost_ns = 0;
  if (!open_batch(stream, work)) {
    meter_unclaim(stream);
    return false;
  }
  if (!stream->batch.is_unknown)
    meter_known_cost(stream->meter, work, &cost_ns);
  stream->batch.began_ns = stream->meter->driver->now_ns();
  join(stream, work, cost_ns, stream->batch.began_ns);
  return true;
}

HOT bool meter_launch(struct meter_stream *stream, uint64_t work, int64_t now_ns) {
  if (__builtin_expect(!meter_claim(stream), 0) && !claim_patiently(stream, &now_ns))
    return false;
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

/* After the first launch of a batch or its last one. A callback within the launch may have launched on the stream
 * itself, and taken the claim. */
HOT void meter_launched(struct meter_stream *stream) {
  if (__builtin_expect(!claim_is_own(&stream->claim), 0))
    return;
  struct batch *batch = &stream->batch;
  int64_t now_ns = stream->meter->driver->now_ns();
  if (stream->meter->launches_block) { /* then it is done, and has begun after it passed the gate */
    set(stream->open, false);
    meter_end_at(stream, now_ns, 0);
  } else {
    batch->last_launch_ns = now_ns;
    if (batch->launches == 1)
      batch->began_ns = now_ns;
    if (!get(stream->open))
      meter_end_with_marker(stream);
  }
  meter_unclaim(stream);
}

static bool launched_here(struct meter_stream *stream) {
  return get(stream->launcher) == claim_this_thread();
}

/* With the claim held, outside of a launch on the stream. A capture may have reached it by an event. */
static bool may_touch(struct meter_stream *stream) {
  const struct meter_driver *driver = stream->meter->driver;
  return launched_here(stream) && driver->is_here(get(stream->context)) && !driver->is_capturing(stream->handle);
}

/* What another thread has ended the batch for is in none. */
void meter_launched_more(struct meter_stream *stream, uint64_t work, uint32_t launches, int64_t last_ns,
                         int64_t now_ns) {
  int64_t cost_ns;
  if (!meter_claim(stream))
    return;
  struct batch *batch = &stream->batch;
  if (get(stream->open) && meter_known_cost(stream->meter, work, &cost_ns)) {
    batch->estimate_ns += cost_ns * launches;
    batch->launches += launches;
    batch->last_launch_ns = last_ns;
    if (stream->observer != NULL)
      stream->observer->joined(batch, cost_ns * launches);
    bool full = batch->estimate_ns >= batch->full_ns || batch->launches >= batch->most_launches;
    bool paused = now_ns - last_ns >= METER_SPARSE_NS; /* before some of them, perhaps */
    if (paused || (full && may_touch(stream))) {
      set(stream->open, false);
      if (paused)
        meter_end_unseen(stream);
      else
        meter_end_now(stream);
    }
  }
  meter_unclaim(stream);
}

bool meter_claim_again(struct meter_stream *stream) {
  for (int tries = 0; tries < CLAIM_TRIES; tries++) {
    claim_pause();
    if (__atomic_load_n(&stream->claim, __ATOMIC_RELAXED) == 0 && claim_try(&stream->claim))
      return true;
  }
  return false;
}

bool meter_claim_open(struct meter_stream *stream) {
  if (!get(stream->open) || !launched_here(stream) || !meter_claim(stream))
    return false;
  bool mine = get(stream->open) && may_touch(stream);
  if (mine)
    set(stream->open, false);
  else
    meter_unclaim(stream);
  return mine;
}

void meter_close_all(struct meter *meter) {
  uint32_t count = atomic_load(&meter->stream_count);
  for (uint32_t i = 0; i < count; i++)
    if (meter_claim_open(meter->streams[i])) {
      meter_end_now(meter->streams[i]);
      meter_unclaim(meter->streams[i]);
    }
}

void meter_end_all(struct meter *meter) {
  uint32_t count = atomic_load(&meter->stream_count);
  meter_close_all(meter);
  for (uint32_t i = 0; i < count; i++) {
    struct meter_stream *stream = meter->streams[i];
    if (!get(stream->open) || !meter_claim(stream))
      continue;
    if (get(stream->open)) {
      set(stream->open, false);
      meter_end_unseen(stream);
    }
    meter_unclaim(stream);
  }
}
