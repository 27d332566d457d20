/* Batches that have completed are measured and charged. One thread at a time harvests. */
#include "beside.h"
#include "bucket.h"
#include "log.h"
#include "meter_parts.h"
#include "not_enforced.h"
#include "timeline.h"

#include <stdlib.h>

#define MOST_HAND_OVER_NS 500000LL

static int64_t max(int64_t a, int64_t b) {
  return a > b ? a : b;
}

static struct timeline *find_timeline(struct meter *meter, const void *context) {
  for (int i = 0; i < METER_MAX_CONTEXTS; i++)
    if (__atomic_load_n(&meter->timelines[i].context, __ATOMIC_RELAXED) == context)
      return &meter->timelines[i];
  return NULL;
}

static struct timeline *timeline_of(const struct meter_stream *stream) {
  struct meter *meter = stream->meter;
  void *context = __atomic_load_n(&stream->context, __ATOMIC_RELAXED);
  struct timeline *timeline = context != NULL ? find_timeline(meter, context) : NULL;
  if (context == NULL || timeline != NULL)
    return timeline;
  if ((timeline = find_timeline(meter, NULL)) == NULL) {
    static int said;
    log_once(&said, LOG_WARNING, "more than %d contexts; the compute limit is not enforced on the others",
             METER_MAX_CONTEXTS);
    not_enforced(meter->device, VGPU_NOT_ENFORCED_SM);
    return NULL;
  }
  *timeline = (struct timeline){.context = context};
  return timeline;
}

/* When the marker completed; it is recycled unless the timeline keeps it. */
static int64_t place(struct meter_stream *stream, void *marker, int64_t recorded_ns, int64_t observed_ns) {
  struct meter *meter = stream->meter;
  struct timeline *timeline = timeline_of(stream);
  bool kept = false;
  void *replaced = NULL;
  int64_t wall_ns = observed_ns;
  if (timeline != NULL)
    wall_ns = timeline_place(timeline, meter->driver, marker, recorded_ns, observed_ns, &kept, &replaced);
  meter_recycle(stream, replaced);
  if (!kept)
    meter_recycle(stream, marker);
  return wall_ns;
}

static int by_start(const void *a, const void *b) {
  int64_t first = ((const struct interval *)a)->start_ns, second = ((const struct interval *)b)->start_ns;
  return (first > second) - (first < second);
}

/* How far our streams overlap: what is in several intervals counts once. The bucket's own answer would not do, since it
 * charges nothing for what another process of the container has been charged for. The last hundred milliseconds count.
 */
static void note_overlap(struct meter *meter, const struct interval *interval) {
  int64_t fresh_from_ns = interval->start_ns > meter->measured_until_ns ? interval->start_ns : meter->measured_until_ns;
  int64_t fresh_ns = interval->end_ns > fresh_from_ns ? interval->end_ns - fresh_from_ns : 0;
  int64_t measured_ns = meter->measured_ns + interval->end_ns - interval->start_ns;
  int64_t charged_ns = meter->charged_ns + fresh_ns;
  int halved = measured_ns > 100000000;
  meter->measured_until_ns = fresh_from_ns + fresh_ns;
  __atomic_store_n(&meter->measured_ns, measured_ns >> halved, __ATOMIC_RELAXED);
  __atomic_store_n(&meter->charged_ns, charged_ns >> halved, __ATOMIC_RELAXED);
}

uint32_t meter_percent_of_time(struct meter *meter) {
  if (!meter->takes_turns)
    return meter_percent(meter);
  return meter_percent(meter) * (1 + beside_count(meter));
}

static void charge(struct meter *meter, int64_t start_ns, int64_t end_ns, int64_t now_ns) {
  int64_t had_ns = bucket_charge(meter->device, start_ns, end_ns, now_ns, meter_percent_of_time(meter));
  __atomic_add_fetch(&meter->had_ns, had_ns, __ATOMIC_RELAXED);
}

/* The GPU takes a tenth of a millisecond to switch to another tenant. Where the shares are all of its time, each pays
 * for being switched to: else who is ahead would have its share in full, and who is behind what is left. */
void meter_pay_hand_over(struct meter *meter, int64_t start_ns) {
  if (__atomic_load_n(&meter->took_turn_ns, __ATOMIC_RELAXED) == 0)
    return;
  int64_t took_ns = __atomic_exchange_n(&meter->took_turn_ns, 0, __ATOMIC_RELAXED);
  int64_t from_ns = max(took_ns, start_ns - MOST_HAND_OVER_NS);
  if (took_ns > 0 && start_ns > from_ns && turns_share_all(&meter->turns))
    bucket_pay(meter->device, from_ns, start_ns, meter->driver->now_ns(), meter_percent_of_time(meter));
}

/* In the order in which they began: what comes later than others is charged as far as the bucket remembers it. */
static void charge_intervals(struct meter *meter) {
  if (meter->interval_count == 0)
    return;
  int64_t now_ns = meter->driver->now_ns();
  qsort(meter->intervals, meter->interval_count, sizeof meter->intervals[0], by_start);
  for (uint32_t i = 0; i < meter->interval_count; i++) {
    const struct interval *interval = &meter->intervals[i];
    charge(meter, interval->start_ns, interval->end_ns, now_ns);
    note_overlap(meter, interval);
  }
  meter->interval_count = 0;
}

void meter_charge(struct meter *meter, int64_t start_ns, int64_t end_ns, int64_t now_ns) {
  if (end_ns > start_ns)
    charge(meter, start_ns, end_ns, now_ns);
}

static int64_t offset_ns(struct meter_stream *stream) {
  const struct timeline *timeline = timeline_of(stream);
  return timeline != NULL ? timeline->offset_ns : 0;
}

/* Places the batch on the wall clock; its markers are used up. The end first, since of the start it is only known when
 * it was recorded, which may have been behind much other work; but what the start tells of the clocks holds for both.
 */
static struct interval interval_of(struct meter_stream *stream, const struct batch *batch) {
  int64_t now_ns = stream->meter->driver->now_ns();
  int64_t end_ns = place(stream, batch->end, max(batch->end_recorded_ns, batch->end_pending_ns), now_ns);
  int64_t start_ns = max(__atomic_load_n(&stream->previous_end_ns, __ATOMIC_RELAXED), batch->launched_ns);
  int64_t before_ns = offset_ns(stream);
  if (batch->begins == START_AT_MARKER)
    start_ns = max(start_ns, place(stream, batch->start, batch->start_recorded_ns, now_ns));
  else if (batch->begins == START_AT_GATE)
    start_ns = max(start_ns, batch->start_recorded_ns);
  end_ns += offset_ns(stream) - before_ns;
  return (struct interval){start_ns, max(start_ns, end_ns)};
}

static void measure(struct meter_stream *stream, const struct batch *batch) {
  struct meter *meter = stream->meter;
  struct interval interval = interval_of(stream, batch);
  int64_t work_ns = meter_work_ns(batch, interval.start_ns, interval.end_ns);
  meter_pay_hand_over(meter, interval.start_ns);
  meter_learn(stream, batch, meter_certain_work_ns(batch, interval.start_ns, interval.end_ns));
  meter_show(stream, batch, interval.end_ns - work_ns, interval.end_ns);
  interval.start_ns = interval.end_ns - meter_due_ns(batch, interval.start_ns, interval.end_ns);
  __atomic_add_fetch(&stream->had_ns, interval.end_ns - interval.start_ns, __ATOMIC_RELAXED);
  __atomic_store_n(&stream->previous_end_ns, interval.end_ns, __ATOMIC_RELAXED);
  meter_raise(&meter->busy_from_ns, interval.end_ns);
  if (meter->interval_count == METER_INTERVALS)
    charge_intervals(meter);
  meter->intervals[meter->interval_count++] = interval;
  __atomic_add_fetch(&meter->device->launches, batch->launches, __ATOMIC_RELAXED);
}

static void drop(struct meter_stream *stream, const struct batch *batch) {
  meter_show(stream, batch, 0, 0);
  meter_recycle(stream, batch->start);
  meter_recycle(stream, batch->end);
}

static void harvest_stream(struct meter_stream *stream) {
  struct meter *meter = stream->meter;
  if (meter_is_destroyed(stream))
    meter_forget_in_flight(stream);
  while (!meter_is_dry(stream)) {
    struct batch *oldest = &stream->ring[stream->tail % METER_RING];
    enum meter_state state = oldest->end != NULL ? meter->driver->query(oldest->end) : METER_LOST;
    if (state == METER_PENDING) {
      oldest->end_pending_ns = meter->driver->now_ns();
      return;
    }
    const struct batch batch = *oldest;
    oldest->start = oldest->end = oldest->parts = NULL; /* a harvest that is not finished is not done again */
    if (state == METER_DONE)
      measure(stream, &batch);
    else {
      drop(stream, &batch);
      __atomic_store_n(&stream->previous_end_ns, meter->driver->now_ns(), __ATOMIC_RELAXED);
    }
    __atomic_store_n(&meter->progress_ns, meter->driver->now_ns(), __ATOMIC_RELAXED);
    meter_leave_flight(stream);
  }
}

void meter_harvest(struct meter *meter) {
  if (!claim_try(&meter->harvester) && !claim_recover(&meter->harvester))
    return;
  uint32_t count = __atomic_load_n(&meter->stream_count, __ATOMIC_ACQUIRE);
  for (uint32_t i = 0; i < count; i++)
    harvest_stream(meter->streams[i]);
  charge_intervals(meter);
  claim_release(&meter->harvester);
}
