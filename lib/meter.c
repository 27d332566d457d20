/* Launches form batches. */
#include "meter.h"

#include "beside.h"
#include "gate.h"
#include "log.h"
#include "meter_parts.h"
#include "not_enforced.h"
#include "signals.h"

#define OVERLAPS 0.9 /* below this part */
#define HOPE 0.7
#define LEAST_PART 0.1
#define OTHER_THREAD_NS 20000 /* to record a marker takes a microsecond or two */
#define CLAIM_TRIES 40        /* much longer than to join a batch takes */

static int64_t max(int64_t a, int64_t b) {
  return a > b ? a : b;
}

void meter_init(struct meter *meter, const struct meter_driver *driver, struct vgpu_device_shared *device,
                uint32_t sm_percent) {
  *meter = (struct meter){.driver = driver, .device = device, .sm_percent = sm_percent};
}

void meter_begin_measuring(struct meter *meter) {
  __atomic_store_n(&meter->measures_since_ns, meter->driver->now_ns(), __ATOMIC_RELAXED);
}

/* ---- in flight: closed, not yet charged ------------------------------------------------------------------------ */

static int64_t known_part(const struct batch *batch) {
  return batch->last_is_unknown ? batch->estimate_ns - METER_UNKNOWN_COST_NS : batch->estimate_ns;
}

static void enter_flight(struct meter_stream *stream, const struct batch *batch) {
  struct meter *meter = stream->meter;
  stream->ring[stream->head % METER_RING] = *batch;
  __atomic_add_fetch(&meter->in_flight_ns, batch->estimate_ns, __ATOMIC_RELAXED);
  __atomic_add_fetch(&meter->reserved_ns, known_part(batch), __ATOMIC_RELAXED);
  if (__atomic_fetch_add(&meter->in_flight_batches, 1, __ATOMIC_RELAXED) == 0) {
    __atomic_store_n(&meter->progress_ns, batch->end_recorded_ns, __ATOMIC_RELAXED);
    meter_raise(&meter->busy_from_ns, batch->start_recorded_ns);
  }
  __atomic_store_n(&stream->head, stream->head + 1, __ATOMIC_RELEASE);
}

void meter_leave_flight(struct meter_stream *stream) {
  struct meter *meter = stream->meter;
  const struct batch *batch = &stream->ring[stream->tail % METER_RING];
  __atomic_sub_fetch(&meter->in_flight_ns, batch->estimate_ns, __ATOMIC_RELAXED);
  __atomic_sub_fetch(&meter->reserved_ns, known_part(batch), __ATOMIC_RELAXED);
  __atomic_sub_fetch(&meter->in_flight_batches, 1, __ATOMIC_RELAXED);
  __atomic_store_n(&stream->tail, stream->tail + 1, __ATOMIC_RELEASE);
}

/* The part of the measured time of late that was charged: 1 for streams that run one after the other. Once they
 * overlap, a little less is expected than was seen: as long as the gate holds launches back that would have run beside
 * others, less is seen than could be. */
static double overlap(const struct meter *meter) {
  int64_t measured_ns = __atomic_load_n(&meter->measured_ns, __ATOMIC_RELAXED);
  int64_t charged_ns = __atomic_load_n(&meter->charged_ns, __ATOMIC_RELAXED);
  double part = measured_ns > 0 ? (double)charged_ns / (double)measured_ns : 1;
  if (part > OVERLAPS)
    return 1;
  return part * HOPE > LEAST_PART ? part * HOPE : LEAST_PART;
}

int64_t meter_in_flight_ns(const struct meter *meter) {
  return (int64_t)(overlap(meter) * (double)__atomic_load_n(&meter->in_flight_ns, __ATOMIC_RELAXED));
}

int64_t meter_reserved_ns(const struct meter *meter) {
  return (int64_t)(overlap(meter) * (double)__atomic_load_n(&meter->reserved_ns, __ATOMIC_RELAXED));
}

bool meter_streams_overlap(const struct meter *meter) {
  return overlap(meter) < OVERLAPS;
}

/* ---- batches ------------------------------------------------------------------------------------------------- */

void meter_finish_at(struct meter_stream *stream, int64_t end_ns, int64_t now_ns) {
  struct meter *meter = stream->meter;
  struct batch *batch = &stream->batch;
  int64_t start_ns = batch->start_recorded_ns;
  int64_t due_ns = meter_due_ns(batch, start_ns, end_ns);
  meter_pay_hand_over(meter, start_ns);
  meter_charge(meter, end_ns - due_ns, end_ns, now_ns);
  __atomic_add_fetch(&stream->had_ns, due_ns, __ATOMIC_RELAXED);
  meter_show(stream, batch, end_ns - meter_work_ns(batch, start_ns, end_ns), end_ns);
  __atomic_add_fetch(&meter->device->launches, batch->launches, __ATOMIC_RELAXED);
  meter_recycle(stream, batch->start);
  meter_set_open(stream, false);
}

void meter_mark_end(struct meter_stream *stream) {
  struct meter *meter = stream->meter;
  struct batch *batch = &stream->batch;
  meter_set_open(stream, false);
  batch->end_recorded_ns = meter->driver->now_ns();
  meter_note_pace(stream);
  bool room = stream->head - __atomic_load_n(&stream->tail, __ATOMIC_ACQUIRE) < METER_RING;
  bool can_record = room && !meter->driver->is_capturing(stream->handle);
  batch->end = can_record ? meter->driver->record(stream->handle) : NULL;
  if (batch->end == NULL)
    meter_finish_at(stream, batch->start_recorded_ns + batch->estimate_ns, meter->driver->now_ns());
  else {
    enter_flight(stream, batch);
    gate_note_activity(meter, 0);
  }
  stream->last_busy_ns += meter->driver->now_ns() - batch->end_recorded_ns; /* the host would not have taken that */
}

/* With the claim held, at the gate's far side. False when the batch's start cannot be marked. */
static bool begin_batch(struct meter_stream *stream, bool after_gap) {
  const struct meter_driver *driver = stream->meter->driver;
  struct batch *batch = &stream->batch;
  *batch = (struct batch){.start_recorded_ns = driver->now_ns(), .most_launches = meter_most_launches(stream)};
  meter_awake_since_ns = batch->start_recorded_ns;
  int64_t awake_ns = batch->start_recorded_ns - __atomic_load_n(&stream->meter->woke_at_ns, __ATOMIC_RELAXED);
  batch->host_age = meter_host_age(awake_ns);
  const struct gate_pass pass = gate_pass(stream->meter, batch->start_recorded_ns);
  batch->full_ns = (int64_t)((double)pass.batch_ns / overlap(stream->meter));
  batch->open_until_ns = pass.open_until_ns;
  __atomic_store_n(&stream->is_free, pass.is_free, __ATOMIC_RELAXED);
  meter_begin_pace(stream, batch->start_recorded_ns);
  if (!meter_is_dry(stream))
    return true;
  if (after_gap) {
    batch->begins = START_AT_GATE;
    return true;
  }
  batch->begins = START_AT_MARKER;
  batch->start = driver->record(stream->handle);
  return batch->start != NULL;
}

static void cannot_measure(struct meter *meter) {
  static int said;
  log_once(&said, LOG_WARNING, "GPU work on a stream cannot be measured; its compute limit is not enforced");
  not_enforced(meter->device, VGPU_NOT_ENFORCED_SM);
}

static void end_open_batch(struct meter_stream *stream, bool capturing) {
  if (capturing || stream->meter->driver->is_idle(stream->handle))
    meter_finish_by_estimate(stream);
  else
    meter_mark_end(stream);
}

/* With the claim held, before a launch that arrived at that time: leaves a batch open that the launch may join, or none
 * when it cannot be measured now. */
static void open_batch(struct meter_stream *stream, uint64_t work, int64_t arrived_ns) {
  struct meter *meter = stream->meter;
  bool capturing = meter->driver->is_capturing(stream->handle);
  int64_t cost_ns;
  bool known = meter_known_cost(meter, work, &cost_ns);
  bool is_due = arrived_ns >= stream->batch.open_until_ns || meter_is_checked(stream, work);
  if (stream->open && !capturing && known && !is_due && !meter->driver->is_idle(stream->handle))
    return;
  meter_harvest(meter);
  if (stream->open)
    end_open_batch(stream, capturing);
  if (capturing) /* what is captured is charged when its graph is launched */
    return;
  bool waited = __atomic_load_n(&stream->waited, __ATOMIC_RELAXED);
  meter_note_wait(stream);
  int64_t idle_since_ns = __atomic_load_n(&stream->previous_end_ns, __ATOMIC_RELAXED);
  bool after_gap = meter_is_dry(stream) && arrived_ns - idle_since_ns < METER_SPARSE_NS;
  int64_t waited_ns = gate_wait_while_paused(meter);
  gate_wait_for_unmeasured(stream);
  waited_ns += gate_wait_for_share(stream);
  beside_look(stream);
  gate_wait_for_room(stream);
  gate_note_activity(meter, GATE_PASSED_NS);
  signals_release();
  if (meter_is_destroyed(stream)) /* meanwhile */
    return;
  if (waited) /* a wait may come after each kernel, and ends the batch without a marker */
    stream->short_batches = 0;
  else if (waited_ns > 0)
    stream->short_batches = METER_SHORT_BATCHES;
  else if (stream->short_batches > 0)
    stream->short_batches--;
  if (waited_ns > METER_ASLEEP_NS)
    __atomic_store_n(&meter->woke_at_ns, meter->driver->now_ns(), __ATOMIC_RELAXED);
  meter_note_row(stream, waited || stream->one_by_one);
  bool begun = begin_batch(stream, after_gap && known);
  meter_set_open(stream, begun);
  if (!begun)
    cannot_measure(meter);
}

/* Counts a launch in the open batch; true when the batch ends with it. */
static inline __attribute__((always_inline)) bool count(struct meter_stream *stream, uint64_t work, bool known,
                                                        int64_t cost_ns, int64_t host_ns, int64_t now_ns) {
  struct batch *batch = &stream->batch;
  const struct meter_observer *observer = stream->observer;
  if (batch->last_work != work && batch->launches > 0)
    batch->mixed = true;
  if (!known)
    cost_ns = METER_UNKNOWN_COST_NS;
  else if (batch->mixed)
    cost_ns = max(1, (int64_t)((double)cost_ns * meter_scale(stream)));
  batch->estimate_ns += cost_ns;
  meter_join_pace(stream, now_ns, host_ns, known ? cost_ns : stream->usual_cost_ns);
  batch->last_work = work;
  batch->last_is_unknown = !known; /* and then the batch ends */
  batch->launches++;
  if (observer != NULL)
    observer->joined(batch, known ? cost_ns : 0);
  stream->last_busy_ns = now_ns;
  __atomic_store_n(&stream->launcher, claim_this_thread(), __ATOMIC_RELAXED);
  __atomic_store_n(&stream->waited, false, __ATOMIC_RELAXED);
  /* As near as whole launches come to it: of two kernels of a millisecond the second would pass without its tokens. */
  bool full = batch->estimate_ns + cost_ns / 2 >= batch->full_ns || batch->launches >= batch->most_launches;
  bool is_short = cost_ns >= METER_LONG_NS && stream->short_batches > 0;
  bool checked = meter_is_checked(stream, work);
  if (known && !full && !is_short && !checked && !stream->one_by_one)
    return false;
  if (checked)
    stream->checks_next = false;
  meter_set_open(stream, false);
  return true;
}

/* While another thread is at the gate for this stream, or closes its batch: what is launched before it is through
 * would be in no batch. False when that takes too long. A claim that the thread has itself is of a launch that it has
 * left. */
static SELDOM bool claim_patiently(struct meter_stream *stream, int64_t *now_ns) {
  const struct meter_driver *driver = stream->meter->driver;
  int64_t give_up_ns = *now_ns + METER_PATIENCE_NS;
  while (!meter_claim(stream) && !claim_recover(&stream->claim)) {
    if (*now_ns >= give_up_ns)
      break;
    give_up_ns += gate_wait_while_paused(stream->meter);
    give_up_ns += gate_wait_for_share(stream);
    driver->sleep_ns(OTHER_THREAD_NS);
    *now_ns = driver->now_ns();
  }
  signals_release();
  return claim_is_own(&stream->claim);
}

/* With the claim held, which ends here where the launch cannot be measured. */
static SELDOM bool launch_in_new_batch(struct meter_stream *stream, uint64_t work, int64_t now_ns) {
  int64_t cost_ns = 0, last_ns = stream->last_busy_ns;
  stream->one_by_one = now_ns - last_ns >= METER_SPARSE_NS || stream->meter->launches_block;
  open_batch(stream, work, now_ns);
  if (!stream->open) {
    meter_unclaim(stream);
    return false;
  }
  bool known = meter_known_cost(stream->meter, work, &cost_ns);
  /* What the host did before may have been for other streams. */
  last_ns = max(last_ns, __atomic_load_n(&stream->meter->last_busy_ns, __ATOMIC_RELAXED));
  count(stream, work, known, cost_ns, now_ns - last_ns, max(now_ns, stream->batch.start_recorded_ns));
  if (stream->batch.begins == START_AT_GATE) /* what we have done up to here is not charged */
    stream->batch.start_recorded_ns = stream->meter->driver->now_ns();
  return true;
}

HOT bool meter_launch(struct meter_stream *stream, uint64_t work, int64_t now_ns) {
  if (__builtin_expect(!meter_claim(stream), 0) && !claim_patiently(stream, &now_ns))
    return false;
  int64_t cost_ns;
  int64_t host_ns = now_ns - stream->last_busy_ns;
  bool joins = stream->open && host_ns < METER_SPARSE_NS && now_ns < stream->batch.open_until_ns &&
               !meter_is_checked(stream, work) && meter_known_cost(stream->meter, work, &cost_ns);
  if (__builtin_expect(!joins, 0))
    return launch_in_new_batch(stream, work, now_ns);
  bool ends = count(stream, work, true, cost_ns, host_ns, now_ns);
  if (!ends)
    meter_unclaim(stream);
  return ends;
}

/* Before the call returned, the GPU had nothing to do; unknown work may even have loaded its code there. But where
 * launches block, it is done by then. */
static SELDOM void note_first_launch(struct meter_stream *stream) {
  struct batch *batch = &stream->batch;
  int64_t now_ns = stream->meter->driver->now_ns();
  if (stream->meter->launches_block)
    stream->gpu_until_ns = now_ns;
  else if (batch->begins == START_AT_MARKER || batch->last_is_unknown)
    batch->launched_ns = now_ns;
}

/* A callback within the launch may have launched on the stream itself, and taken the claim. */
HOT void meter_launched(struct meter_stream *stream) {
  if (__builtin_expect(!claim_is_own(&stream->claim), 0))
    return;
  if (stream->batch.launches == 1)
    note_first_launch(stream);
  if (stream->open)
    meter_unclaim(stream);
  else
    meter_close_claimed(stream);
}

/* In the open batch, as if they had come evenly. */
static void count_more(struct meter_stream *stream, int64_t all_ns, uint32_t launches, int64_t now_ns) {
  struct batch *batch = &stream->batch;
  batch->estimate_ns += all_ns;
  batch->launches += launches;
  batch->idle_ns += max(0, now_ns - stream->gpu_until_ns - all_ns);
  stream->gpu_until_ns = max(stream->gpu_until_ns + all_ns, now_ns);
  stream->last_busy_ns = now_ns;
  if (stream->observer != NULL)
    stream->observer->joined(batch, all_ns);
}

static bool launched_here(const struct meter_stream *stream) {
  return __atomic_load_n(&stream->launcher, __ATOMIC_RELAXED) == claim_this_thread();
}

/* With the claim held, outside of a launch on the stream. A capture may have reached it by an event. */
static bool may_touch(const struct meter_stream *stream) {
  const struct meter_driver *driver = stream->meter->driver;
  return launched_here(stream) && driver->is_here(__atomic_load_n(&stream->context, __ATOMIC_RELAXED)) &&
         !driver->is_capturing(stream->handle);
}

/* What another thread has ended the batch for is in none. Where there may have been a long pause, before the last
 * launches or after them, an end that is marked now might have the pause in it. */
void meter_launched_more(struct meter_stream *stream, uint64_t work, uint32_t launches, int64_t last_ns,
                         int64_t now_ns) {
  int64_t cost_ns;
  if (!meter_claim(stream))
    return;
  struct batch *batch = &stream->batch;
  bool joins = stream->open && meter_known_cost(stream->meter, work, &cost_ns);
  bool paused = now_ns - last_ns >= METER_SPARSE_NS;
  if (joins)
    count_more(stream, (int64_t)((batch->mixed ? meter_scale(stream) : 1) * (double)cost_ns * launches), launches,
               paused ? last_ns : now_ns);
  bool full = batch->estimate_ns >= batch->full_ns || batch->launches >= batch->most_launches;
  if (joins && paused && now_ns >= stream->gpu_until_ns)
    meter_finish_by_estimate(stream);
  else if (joins && full && may_touch(stream)) {
    meter_set_open(stream, false);
    meter_close_claimed(stream);
    return;
  }
  meter_unclaim(stream);
}

void meter_close_claimed(struct meter_stream *stream) {
  meter_mark_end(stream);
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
  if (!meter_is_open(stream) || !launched_here(stream) || !meter_claim(stream))
    return false;
  bool mine = stream->open && may_touch(stream);
  if (mine)
    meter_set_open(stream, false);
  else
    meter_unclaim(stream);
  return mine;
}

void meter_close_all(struct meter *meter) {
  uint32_t count = __atomic_load_n(&meter->stream_count, __ATOMIC_ACQUIRE);
  for (uint32_t i = 0; i < count; i++)
    if (meter_claim_open(meter->streams[i]))
      meter_close_claimed(meter->streams[i]);
}

void meter_end_all(struct meter *meter) {
  uint32_t count = __atomic_load_n(&meter->stream_count, __ATOMIC_ACQUIRE);
  meter_close_all(meter);
  for (uint32_t i = 0; i < count; i++) {
    struct meter_stream *stream = meter->streams[i];
    if (!meter_is_open(stream) || !meter_claim(stream))
      continue;
    if (stream->open)
      meter_finish_by_estimate(stream);
    meter_unclaim(stream);
  }
}
