#include "meter.h"

#include "bucket.h"
#include "gate.h"
#include "log.h"
#include "not_enforced.h"
#include "timeline.h"

#include <stdlib.h>

#define OTHER_THREAD_NS 20000              /* to record a marker takes a microsecond or two */
#define UNKNOWN_COST_NS METER_RUN_AHEAD_NS /* at most two launches of unknown cost are in flight */

static int64_t max(int64_t a, int64_t b) {
  return a > b ? a : b;
}

void meter_init(struct meter *meter, const struct meter_driver *driver, struct vgpu_device_shared *device,
                uint32_t sm_percent) {
  *meter = (struct meter){.driver = driver, .device = device, .sm_percent = sm_percent};
  pthread_mutex_init(&meter->lock, NULL);
}

/* ---- what a launch costs ------------------------------------------------------------------------------------- */

static struct meter_cost *cost_of(struct meter *meter, uint64_t work) {
  return &meter->costs[(work * 0x9e3779b97f4a7c15ULL) >> 52 & (METER_COSTS - 1)];
}

/* Threads may race here: a wrong estimate shifts a marker, never a charge. */
static bool known_cost(struct meter *meter, uint64_t work, int64_t *cost_ns) {
  const struct meter_cost *cost = cost_of(meter, work);
  if (__atomic_load_n(&cost->work, __ATOMIC_RELAXED) != work)
    return false;
  *cost_ns = __atomic_load_n(&cost->cost_ns, __ATOMIC_RELAXED);
  return true;
}

static void set_cost(struct meter *meter, uint64_t work, int64_t cost_ns) {
  struct meter_cost *cost = cost_of(meter, work);
  __atomic_store_n(&cost->cost_ns, max(1, cost_ns), __ATOMIC_RELAXED);
  __atomic_store_n(&cost->work, work, __ATOMIC_RELAXED);
}

static void learn(struct meter_stream *stream, const struct batch *batch, int64_t measured_ns) {
  struct meter *meter = stream->meter;
  int64_t known_ns;
  if (batch->last_is_unknown) /* what the others are not expected to have taken */
    set_cost(meter, batch->last_work, measured_ns - (batch->estimate_ns - UNKNOWN_COST_NS));
  else if (batch->mixed) {
    double scale = stream->scale * (0.75 + 0.25 * (double)measured_ns / (double)batch->estimate_ns);
    stream->scale = scale < 0.125 ? 0.125 : scale > 8 ? 8 : scale;
  } else if (known_cost(meter, batch->last_work, &known_ns))
    set_cost(meter, batch->last_work, (3 * known_ns + measured_ns / batch->launches) / 4);
}

/* ---- harvest: completed batches are charged ------------------------------------------------------------------ */

static struct timeline *timeline_of(struct meter *meter, void *context) {
  for (uint32_t i = 0; i < meter->timeline_count; i++)
    if (meter->timelines[i].context == context)
      return &meter->timelines[i];
  if (meter->timeline_count == METER_MAX_CONTEXTS) {
    static int said;
    log_once(&said, LOG_WARNING, "more than %d contexts; the compute limit is not enforced on the others",
             METER_MAX_CONTEXTS);
    not_enforced(meter->device, VGPU_NOT_ENFORCED_SM);
    return NULL;
  }
  struct timeline *timeline = &meter->timelines[meter->timeline_count++];
  *timeline = (struct timeline){.context = context};
  return timeline;
}

/* When the marker completed; it is recycled unless the timeline keeps it. */
static int64_t place(struct meter_stream *stream, void *marker, int64_t recorded_ns, int64_t observed_ns) {
  struct meter *meter = stream->meter;
  struct timeline *timeline = timeline_of(meter, stream->context);
  bool kept = false;
  void *replaced = NULL;
  int64_t wall_ns = observed_ns;
  if (timeline != NULL)
    wall_ns = timeline_place(timeline, meter->driver, marker, recorded_ns, observed_ns, &kept, &replaced);
  if (replaced != NULL)
    meter->driver->recycle(replaced);
  if (!kept)
    meter->driver->recycle(marker);
  return wall_ns;
}

static int by_start(const void *a, const void *b) {
  int64_t first = ((const struct interval *)a)->start_ns, second = ((const struct interval *)b)->start_ns;
  return (first > second) - (first < second);
}

/* In the order in which they began, since the bucket charges nothing before what it has charged. */
static void charge_intervals(struct meter *meter) {
  int64_t now_ns = meter->driver->now_ns();
  qsort(meter->intervals, meter->interval_count, sizeof meter->intervals[0], by_start);
  for (uint32_t i = 0; i < meter->interval_count; i++)
    bucket_charge(meter->device, meter->intervals[i].start_ns, meter->intervals[i].end_ns, now_ns,
                  meter_percent(meter));
  meter->interval_count = 0;
}

static void measure(struct meter_stream *stream, const struct batch *batch) {
  struct meter *meter = stream->meter;
  int64_t now_ns = meter->driver->now_ns();
  int64_t start_ns = stream->previous_end_ns;
  if (batch->start != NULL)
    start_ns = place(stream, batch->start, batch->start_recorded_ns, now_ns);
  int64_t end_ns = place(stream, batch->end, batch->end_recorded_ns, now_ns);
  stream->previous_end_ns = end_ns;
  if (meter->interval_count == METER_INTERVALS)
    charge_intervals(meter);
  meter->intervals[meter->interval_count++] = (struct interval){start_ns, end_ns};
  __atomic_add_fetch(&meter->device->launches, batch->launches, __ATOMIC_RELAXED);
  learn(stream, batch, end_ns - start_ns);
}

static void drop(struct meter_stream *stream, const struct batch *batch) {
  if (batch->start != NULL)
    stream->meter->driver->recycle(batch->start);
  stream->meter->driver->recycle(batch->end);
}

static void harvest_stream(struct meter_stream *stream) {
  struct meter *meter = stream->meter;
  while (stream->tail != __atomic_load_n(&stream->head, __ATOMIC_ACQUIRE)) {
    struct batch *batch = &stream->ring[stream->tail % METER_RING];
    enum meter_state state = meter->driver->query(batch->end);
    if (state == METER_PENDING)
      return;
    if (state == METER_DONE)
      measure(stream, batch);
    else {
      drop(stream, batch);
      stream->previous_end_ns = meter->driver->now_ns();
    }
    __atomic_sub_fetch(&meter->in_flight_ns, batch->estimate_ns, __ATOMIC_RELAXED);
    __atomic_sub_fetch(&meter->in_flight_batches, 1, __ATOMIC_RELAXED);
    __atomic_add_fetch(&meter->harvested, 1, __ATOMIC_RELAXED);
    __atomic_store_n(&meter->passes, 0, __ATOMIC_RELAXED);
    __atomic_store_n(&meter->granted, 0, __ATOMIC_RELAXED);
    __atomic_store_n(&stream->tail, stream->tail + 1, __ATOMIC_RELEASE);
  }
}

void meter_harvest(struct meter *meter) {
  if (__atomic_exchange_n(&meter->harvesting, true, __ATOMIC_ACQUIRE))
    return;
  uint32_t count = __atomic_load_n(&meter->stream_count, __ATOMIC_ACQUIRE);
  for (uint32_t i = 0; i < count; i++)
    harvest_stream(meter->streams[i]);
  charge_intervals(meter);
  __atomic_store_n(&meter->harvesting, false, __ATOMIC_RELEASE);
}

/* ---- batches ------------------------------------------------------------------------------------------------- */

static bool dry(const struct meter_stream *stream) {
  return __atomic_load_n(&stream->tail, __ATOMIC_ACQUIRE) == __atomic_load_n(&stream->head, __ATOMIC_ACQUIRE);
}

/* A batch whose end could not be marked in time is charged what its launches usually cost. */
static void finish_by_estimate(struct meter_stream *stream) {
  struct meter *meter = stream->meter;
  struct batch *batch = &stream->batch;
  int64_t begin_ns = batch->start_recorded_ns;
  bucket_charge(meter->device, begin_ns, begin_ns + batch->estimate_ns, meter->driver->now_ns(), meter_percent(meter));
  __atomic_add_fetch(&meter->device->launches, batch->launches, __ATOMIC_RELAXED);
  if (batch->start != NULL)
    meter->driver->recycle(batch->start);
  stream->open = false;
}

/* With the claim held, before a launch: leaves a batch open that the launch may join, or none when it cannot be
 * measured now. */
static void open_batch(struct meter_stream *stream) {
  struct meter *meter = stream->meter;
  const struct meter_driver *driver = meter->driver;
  bool capturing = driver->is_capturing(stream->handle);
  if (stream->open && !capturing && !driver->is_idle(stream->handle))
    return;
  meter_harvest(meter);
  if (stream->open)
    finish_by_estimate(stream);
  if (capturing) /* what is captured is charged when its graph is launched */
    return;
  gate_wait_for_tokens(meter);
  gate_wait_for_turn(meter);
  gate_wait_for_room(meter);
  stream->batch = (struct batch){.start_recorded_ns = driver->now_ns()};
  if (dry(stream)) {
    stream->batch.start = driver->record(stream->handle);
    if (stream->batch.start == NULL) {
      static int said;
      log_once(&said, LOG_WARNING, "GPU work on a stream cannot be measured; its compute limit is not enforced");
      not_enforced(meter->device, VGPU_NOT_ENFORCED_SM);
      return;
    }
  }
  stream->open = true;
  gate_note_activity(meter, METER_BATCH_NS);
}

/* Counts a launch in the open batch; true when the batch ends with it. */
static bool count(struct meter_stream *stream, uint64_t work, int64_t now_ns) {
  struct batch *batch = &stream->batch;
  int64_t cost_ns;
  bool known = known_cost(stream->meter, work, &cost_ns);
  if (batch->launches > 0 && batch->last_work != work)
    batch->mixed = true;
  if (!known)
    cost_ns = UNKNOWN_COST_NS;
  else if (batch->mixed)
    cost_ns = max(1, (int64_t)((double)cost_ns * stream->scale));
  batch->estimate_ns += cost_ns;
  batch->last_work = work;
  batch->last_is_unknown = !known; /* and then the batch ends */
  batch->launches++;
  stream->last_launch_ns = now_ns;
  bool full = batch->estimate_ns >= METER_BATCH_NS || batch->launches >= METER_BATCH_LAUNCHES;
  if (known && !full && !stream->one_by_one)
    return false;
  stream->open = false;
  stream->claimed = true;
  return true;
}

static bool claim(struct meter_stream *stream) {
  bool mine = !stream->claimed;
  stream->claimed = true;
  return mine;
}

enum joined { JOINED, JOINED_AND_CLOSES, CLAIMED, MUST_WAIT };

/* Joins the open batch, or claims the stream to open one. */
static enum joined join(struct meter_stream *stream, uint64_t work, int64_t now_ns) {
  enum joined joined = MUST_WAIT;
  pthread_mutex_lock(&stream->lock);
  bool dense = now_ns - stream->last_launch_ns < METER_SPARSE_NS;
  if (!stream->claimed && stream->open && dense)
    joined = count(stream, work, now_ns) ? JOINED_AND_CLOSES : JOINED;
  else if (claim(stream)) {
    stream->one_by_one = !dense;
    joined = CLAIMED;
  }
  pthread_mutex_unlock(&stream->lock);
  return joined;
}

bool meter_launch(struct meter_stream *stream, uint64_t work) {
  const struct meter_driver *driver = stream->meter->driver;
  int64_t now_ns = driver->now_ns();
  int64_t give_up_ns = now_ns + METER_PATIENCE_NS;
  enum joined joined;
  /* While another thread is at the gate for this stream, or closes its batch: what is launched before it is through
   * would be in no batch. */
  while ((joined = join(stream, work, now_ns)) == MUST_WAIT && now_ns < give_up_ns) {
    give_up_ns += gate_wait_for_tokens(stream->meter) + gate_wait_for_turn(stream->meter);
    driver->sleep_ns(OTHER_THREAD_NS);
    now_ns = driver->now_ns();
  }
  if (joined != CLAIMED)
    return joined == JOINED_AND_CLOSES;

  open_batch(stream);
  pthread_mutex_lock(&stream->lock);
  stream->claimed = false;
  bool closes = stream->open && count(stream, work, driver->now_ns());
  pthread_mutex_unlock(&stream->lock);
  return closes;
}

void meter_close_claimed(struct meter_stream *stream) {
  struct meter *meter = stream->meter;
  struct batch *batch = &stream->batch;
  batch->end_recorded_ns = meter->driver->now_ns();
  bool room = stream->head - __atomic_load_n(&stream->tail, __ATOMIC_ACQUIRE) < METER_RING;
  bool can_record = room && !meter->driver->is_capturing(stream->handle);
  batch->end = can_record ? meter->driver->record(stream->handle) : NULL;
  if (batch->end == NULL)
    finish_by_estimate(stream);
  else {
    stream->ring[stream->head % METER_RING] = *batch;
    __atomic_add_fetch(&meter->in_flight_ns, batch->estimate_ns, __ATOMIC_RELAXED);
    __atomic_add_fetch(&meter->in_flight_batches, 1, __ATOMIC_RELAXED);
    __atomic_store_n(&stream->head, stream->head + 1, __ATOMIC_RELEASE);
    gate_note_activity(meter, 0);
  }
  pthread_mutex_lock(&stream->lock);
  stream->claimed = false;
  pthread_mutex_unlock(&stream->lock);
}

void meter_close(struct meter_stream *stream) {
  pthread_mutex_lock(&stream->lock);
  void *context = stream->context, *thread = stream->thread;
  bool is_open = !stream->claimed && stream->open;
  pthread_mutex_unlock(&stream->lock);
  if (!is_open || !stream->meter->driver->is_here(context, thread))
    return;
  pthread_mutex_lock(&stream->lock);
  bool same = stream->context == context && stream->thread == thread;
  bool mine = same && !stream->claimed && stream->open;
  if (mine) {
    stream->claimed = true;
    stream->open = false;
  }
  pthread_mutex_unlock(&stream->lock);
  if (mine)
    meter_close_claimed(stream);
}

void meter_close_all(struct meter *meter) {
  uint32_t count = __atomic_load_n(&meter->stream_count, __ATOMIC_ACQUIRE);
  for (uint32_t i = 0; i < count; i++)
    meter_close(meter->streams[i]);
}
