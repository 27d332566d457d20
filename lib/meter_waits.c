/*
 * The program waits for the GPU, or asks it. A wait tells when a stream is idle without any marker: the batch ends when
 * it returns, or up to METER_LATE_NS before. A stream is asked and marked by the thread alone that launched on it last.
 */
#include "meter_parts.h"

void meter_before_wait(struct meter_stream *stream) {
  if (!meter_claim_open(stream))
    return;
  if (stream->meter->driver->is_idle(stream->handle))
    meter_end_unseen(stream);
  else
    set(stream->open, true);
  meter_unclaim(stream);
}

static void end_of_wait(struct meter_stream *stream, enum meter_wait wait, int64_t returned_ns) {
  if (!meter_claim_open(stream))
    return;
  if (wait == METER_STREAM_IS_IDLE || stream->meter->driver->is_idle(stream->handle))
    meter_end_at(stream, returned_ns, METER_LATE_NS);
  else
    meter_end_with_marker(stream);
  meter_unclaim(stream);
}

static void tell_others(struct meter *meter) {
  if (meter->takes_turns && get(meter->in_flight_batches) == 0)
    turns_note_idleness(&meter->turns);
}

void meter_after_wait(struct meter_stream *stream, enum meter_wait wait, int64_t returned_ns) {
  end_of_wait(stream, wait, returned_ns);
  meter_harvest(stream->meter);
  tell_others(stream->meter);
}

void meter_before_wait_all(struct meter *meter) {
  uint32_t count = atomic_load(&meter->stream_count);
  for (uint32_t i = 0; i < count; i++)
    meter_before_wait(meter->streams[i]);
}

void meter_after_wait_all(struct meter *meter, int64_t returned_ns) {
  uint32_t count = atomic_load(&meter->stream_count);
  for (uint32_t i = 0; i < count; i++)
    end_of_wait(meter->streams[i], METER_STREAM_MAY_BE_BUSY, returned_ns);
  meter_harvest(meter);
  tell_others(meter);
}

/* A program that polls looks some microseconds after its launches, and then again and again: a marker is worth its cost
 * once the work is longer. */
void meter_before_poll(struct meter *meter) {
  uint32_t count = atomic_load(&meter->stream_count);
  for (uint32_t i = 0; i < count; i++) {
    struct meter_stream *stream = meter->streams[i];
    if (!meter_claim_open(stream))
      continue;
    if (meter->driver->now_ns() - stream->batch.last_launch_ns >= METER_LATE_NS)
      meter_end_now(stream);
    else
      set(stream->open, true);
    meter_unclaim(stream);
  }
}

void meter_after_poll(struct meter *meter) {
  if (get(meter->in_flight_batches) == 0)
    return;
  meter_harvest(meter);
  tell_others(meter);
}
