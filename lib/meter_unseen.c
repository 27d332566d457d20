/*
 * Work that ends unseen: the batch was open, the host was silent, and when it came back the GPU was idle. It is charged
 * what it usually takes. If it takes longer than it did, that would never show; so the next launch of the kind of its
 * last one is measured by itself, and so is for a while the launch in the same place of each row.
 */
#include "meter_parts.h"

#define CHECKED_ROWS 16

__thread int64_t meter_awake_since_ns;

static int64_t max(int64_t a, int64_t b) {
  return a > b ? a : b;
}

static int64_t min(int64_t a, int64_t b) {
  return a < b ? a : b;
}

static void check_the_next(struct meter_stream *stream) {
  stream->checks_next = true;
  stream->checked_work = stream->batch.last_work;
  stream->checked_place = stream->row_launches + stream->batch.launches;
  stream->checked_rows = CHECKED_ROWS;
}

/* With the gaps between its launches, and after the batch before it: the GPU did not begin it when the host did. */
void meter_finish_by_estimate(struct meter_stream *stream) {
  struct batch *batch = &stream->batch;
  meter_note_pace(stream);
  if (batch->begins == START_AT_PREVIOUS_END) {
    meter_harvest(stream->meter);
    batch->start_recorded_ns =
        max(batch->start_recorded_ns, __atomic_load_n(&stream->previous_end_ns, __ATOMIC_RELAXED));
  }
  int64_t now_ns = stream->meter->driver->now_ns();
  /* A host that was at a gate since its last launch, or waited for another stream, was not silent. */
  if (now_ns - max(stream->last_busy_ns, meter_awake_since_ns) >= METER_SPARSE_NS)
    check_the_next(stream);
  int64_t end_ns = min(batch->start_recorded_ns + batch->estimate_ns + batch->idle_ns, now_ns);
  meter_finish_at(stream, end_ns, now_ns);
  if (meter_is_dry(stream)) /* then it is idle from there on */
    __atomic_store_n(&stream->previous_end_ns, end_ns, __ATOMIC_RELAXED);
}

void meter_note_row(struct meter_stream *stream, bool begins) {
  if (begins && stream->checked_rows > 0)
    stream->checked_rows--;
  stream->row_launches = begins ? 0 : stream->row_launches + stream->batch.launches;
}

uint32_t meter_most_launches(const struct meter_stream *stream) {
  if (stream->checked_rows == 0 || stream->checked_place <= stream->row_launches)
    return METER_BATCH_LAUNCHES;
  uint32_t before = stream->checked_place - stream->row_launches - 1;
  return before == 0 ? 1 : before < METER_BATCH_LAUNCHES ? before : METER_BATCH_LAUNCHES;
}
