/*
 * The program waits for a stream. That tells when the stream is idle without any marker: the batch ends when the wait
 * does. A batch that may have been over long before is not measured so, nor are those that come after a wait which
 * ended late: what is charged is the GPU's time, and not that of a host whose processor is at something else.
 */
#include "meter_parts.h"

/* A wait for something that is done, such as an event of long ago, is over sooner: without a limit the GPU might be at
 * other work then. */
#define WAITED_NS 10000

/* So late a wait ends when the host's processor was taken away, or else the work has become longer: a thread that has
 * slept needs half of it to wake up. Then the ends of so many batches are marked: behind work of 50 us that is hidden.
 */
#define LATE_NS 100000
#define LATE_IN_TURN_NS (LATE_NS + 250000) /* of the first work of a turn: the GPU's switch to it comes before */
#define DOUBTED_WAITS 64

/* Its last launch was long ago, and the stream is idle already: since when, nobody can tell. */
static bool ran_dry_before(const struct meter_stream *stream, int64_t now_ns) {
  return now_ns - stream->last_busy_ns >= METER_SPARSE_NS && stream->meter->driver->is_idle(stream->handle);
}

void meter_before_wait(struct meter_stream *stream) {
  if (!meter_claim_open(stream))
    return;
  int64_t now_ns = stream->meter->driver->now_ns();
  if (ran_dry_before(stream, now_ns))
    meter_finish_by_estimate(stream);
  else if (stream->doubted_waits > 0) {
    stream->doubted_waits--;
    meter_mark_end(stream);
  } else {
    stream->batch.end_recorded_ns = now_ns; /* if it ends with this wait */
    meter_set_open(stream, true);
  }
  meter_unclaim(stream);
}

static bool begins_turn(const struct meter *meter) {
  return __atomic_load_n(&meter->took_turn_ns, __ATOMIC_RELAXED) != 0;
}

/* Streams that work at the same time make each other late: that is no fault of the host's. */
static bool one_works(const struct meter *meter) {
  uint32_t count = __atomic_load_n(&meter->stream_count, __ATOMIC_ACQUIRE);
  uint32_t batches = __atomic_load_n(&meter->in_flight_batches, __ATOMIC_RELAXED);
  for (uint32_t i = 0; i < count; i++)
    batches += meter_is_open(meter->streams[i]);
  return batches <= 1;
}

/* With the claim held, of a stream that was idle by then: what was in flight on it has been harvested. */
static void finish_at_return(struct meter_stream *stream, int64_t returned_ns, bool alone) {
  const struct meter_driver *driver = stream->meter->driver;
  struct batch *batch = &stream->batch;
  if (batch->begins == START_AT_PREVIOUS_END && meter_is_dry(stream))
    batch->start_recorded_ns = __atomic_load_n(&stream->previous_end_ns, __ATOMIC_RELAXED);
  meter_wait_pace(stream);
  meter_note_pace(stream);
  if (alone && returned_ns - stream->gpu_until_ns > (begins_turn(stream->meter) ? LATE_IN_TURN_NS : LATE_NS))
    stream->doubted_waits = DOUBTED_WAITS;
  meter_finish_at(stream, returned_ns, returned_ns);
  meter_learn(stream, batch, meter_certain_work_ns(batch, batch->start_recorded_ns, returned_ns));
  /* What is between this and the next launch is the program's own time; ours is not charged. */
  stream->last_busy_ns = driver->now_ns();
  __atomic_store_n(&stream->previous_end_ns, stream->last_busy_ns, __ATOMIC_RELAXED);
  meter_unclaim(stream);
}

/* What was launched since the last wait has been harvested: the gap to the next launch begins where the GPU was done,
 * and what we do is left out. */
static void note_end(struct meter_stream *stream, int64_t returned_ns) {
  if (__atomic_load_n(&stream->waited, __ATOMIC_RELAXED) || !meter_claim(stream))
    return;
  int64_t end_ns = __atomic_load_n(&stream->previous_end_ns, __ATOMIC_RELAXED);
  if (!stream->open && meter_is_dry(stream) && end_ns > stream->last_busy_ns)
    stream->last_busy_ns = end_ns + stream->meter->driver->now_ns() - returned_ns;
  meter_unclaim(stream);
}

/* Returns how many batches it has left in flight that the GPU is done with. */
static uint32_t end_of_wait(struct meter_stream *stream, enum meter_wait wait, int64_t returned_ns, bool alone) {
  if (!meter_claim_open(stream)) {
    note_end(stream, returned_ns);
    return 0;
  }
  bool is_idle = wait == METER_STREAM_IS_IDLE || stream->meter->driver->is_idle(stream->handle);
  if (is_idle && stream->batch.begins != START_AT_MARKER) {
    finish_at_return(stream, returned_ns, alone);
    return 0;
  }
  meter_close_claimed(stream); /* who has marked the start, marks the end */
  return is_idle;
}

static void tell_others(struct meter *meter, uint32_t done_batches) {
  if (meter->takes_turns && __atomic_load_n(&meter->in_flight_batches, __ATOMIC_RELAXED) <= done_batches)
    turns_note_idleness(&meter->turns);
}

/* The program's wait ends before ours begins, and its next work begins when we are done: what we do is not charged. So
 * the others are told before the end is noted, unless a marker is still to be recorded. */
void meter_after_wait(struct meter_stream *stream, enum meter_wait wait, int64_t returned_ns) {
  struct meter *meter = stream->meter;
  meter_harvest(meter);
  if (wait == METER_STREAM_IS_IDLE)
    tell_others(meter, 0);
  uint32_t done_batches = end_of_wait(stream, wait, returned_ns, one_works(meter));
  __atomic_store_n(&stream->waited, true, __ATOMIC_RELAXED);
  if (done_batches > 0)
    tell_others(meter, done_batches);
  meter_awake_since_ns = returned_ns;
}

void meter_before_wait_all(struct meter *meter) {
  uint32_t count = __atomic_load_n(&meter->stream_count, __ATOMIC_ACQUIRE);
  for (uint32_t i = 0; i < count; i++)
    meter_before_wait(meter->streams[i]);
}

void meter_after_wait_all(struct meter *meter, enum meter_scope scope, int64_t began_ns, int64_t returned_ns) {
  meter_harvest(meter);
  uint32_t count = __atomic_load_n(&meter->stream_count, __ATOMIC_ACQUIRE), done_batches = 0;
  bool alone = scope == METER_FOR_ALL && one_works(meter); /* what a wait for some of it is for may be a copy */
  for (uint32_t i = 0; i < count; i++) {
    done_batches += end_of_wait(meter->streams[i], METER_STREAM_MAY_BE_BUSY, returned_ns, alone);
    if (scope == METER_FOR_ALL || returned_ns - began_ns >= WAITED_NS)
      __atomic_store_n(&meter->streams[i]->waited, true, __ATOMIC_RELAXED);
  }
  tell_others(meter, done_batches);
  meter_awake_since_ns = returned_ns;
}
