#include "compute/outstanding.h"

#include "compute/meter_parts.h"

/* The beginnings are taken off the sum and the ends added to it: so it is right in whatever order threads do that. */
static void begin(struct meter *meter, int64_t now_ns) {
  if (atomic_fetch_add(&meter->outstanding.streams, 1) > 0)
    return;
  add(meter->outstanding.sum_ns, -now_ns);
  meter->note_work();
}

static void end(struct meter *meter) {
  if (atomic_fetch_sub(&meter->outstanding.streams, 1) == 1)
    add(meter->outstanding.sum_ns, meter->driver->now_ns());
}

/* Notes a launch, except into a capture: captured work is launched with its graph. */
void outstanding_launch(struct meter_stream *stream, int64_t now_ns) {
  struct meter *meter = stream->meter;
  if (get(stream->outstanding_ns) == 0 && meter->driver->is_capturing(stream->handle))
    return;
  set(stream->launcher, claim_this_thread());
  add(stream->governed_launches, 1);
  if (swap(stream->outstanding_ns, now_ns) == 0)
    begin(meter, now_ns);
}

void outstanding_launched(struct meter_stream *stream) {
  int64_t now_ns = stream->meter->driver->now_ns();
  if (stream->meter->launches_block) /* then it is done */
    outstanding_done(stream, now_ns);
  else if (get(stream->outstanding_ns) == 0 && !stream->meter->driver->is_capturing(stream->handle) &&
           swap(stream->outstanding_ns, now_ns) == 0)
    begin(stream->meter, now_ns);
}

/* A launch that came after the beginning is not known to be done. */
void outstanding_done(struct meter_stream *stream, int64_t began_ns) {
  int64_t last_ns = get(stream->outstanding_ns);
  while (last_ns != 0 && last_ns <= began_ns)
    if (replace(stream->outstanding_ns, last_ns, 0)) {
      end(stream->meter);
      return;
    }
}

void outstanding_all_done(struct meter *meter, const void *context, int64_t began_ns) {
  uint32_t count = atomic_load(&meter->stream_count);
  for (uint32_t i = 0; i < count; i++)
    if (context == NULL || get(meter->streams[i]->context) == context)
      outstanding_done(meter->streams[i], began_ns);
}

void outstanding_ask(struct meter *meter, int64_t began_ns) {
  uint32_t count = outstanding_any(meter) ? atomic_load(&meter->stream_count) : 0;
  for (uint32_t i = 0; i < count; i++) {
    struct meter_stream *stream = meter->streams[i];
    if (get(stream->outstanding_ns) != 0 && get(stream->handle) != NULL && meter_may_touch(stream) &&
        meter->driver->is_idle(stream->handle))
      outstanding_done(stream, began_ns);
  }
}

/* Between two threads that begin and end at once it may not be right for a moment. */
int64_t outstanding_total_ns(struct meter *meter, int64_t now_ns) {
  int64_t sum_ns = atomic_load(&meter->outstanding.sum_ns);
  return sum_ns < 0 ? sum_ns + now_ns : sum_ns;
}
