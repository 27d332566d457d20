#include "compute/outstanding.h"

#include "base/bucket.h"
#include "compute/meter_parts.h"

/* The beginnings are taken off the sum and the ends added to it: so it is right in whatever order threads do that. */
static void begin(struct meter_stream *stream, int64_t now_ns) {
  struct meter *meter = stream->meter;
  set(stream->since_ns, now_ns);
  if (atomic_fetch_add(&meter->outstanding.streams, 1) != 0) /* below zero, where another thread's end came first */
    return;
  set(meter->outstanding.since_ns, now_ns);
  add(meter->outstanding.sum_ns, -now_ns);
  meter->note_work(meter);
}

/* Notes a launch, except into a capture: captured work is launched with its graph. */
void outstanding_launch(struct meter_stream *stream, int64_t now_ns) {
  struct meter *meter = stream->meter;
  if (get(stream->outstanding_ns) == 0 && meter->driver->is_capturing(stream->handle))
    return;
  set(stream->launcher, claim_this_thread());
  add(meter->launches, 1);
  if (swap(stream->outstanding_ns, now_ns) == 0)
    begin(stream, now_ns);
}

/* Of kernels only those are looked at that are launched while nothing can run. A captured one runs with its graph. */
void outstanding_launched(struct meter_stream *stream, int64_t kernel_ns) {
  struct meter *meter = stream->meter;
  int64_t now_ns = meter->driver->now_ns();
  if (kernel_ns != 0 && get(meter->outstanding.off_ns) != 0 && !meter->driver->is_capturing(stream->handle))
    set(stream->kernel_ns, kernel_ns);
  if (meter->launches_block) /* then it is done */
    outstanding_done(stream, now_ns);
  else if (get(stream->outstanding_ns) == 0 && !meter->driver->is_capturing(stream->handle) &&
           swap(stream->outstanding_ns, now_ns) == 0)
    begin(stream, now_ns);
}

/* A launch that came after the beginning is not known to be done. */
void outstanding_done(struct meter_stream *stream, int64_t began_ns) {
  struct meter *meter = stream->meter;
  int64_t last_ns = get(stream->outstanding_ns);
  while (last_ns != 0 && last_ns <= began_ns)
    if (replace(stream->outstanding_ns, last_ns, 0)) {
      int64_t off_ns = get(meter->outstanding.off_ns), kernel_ns = get(stream->kernel_ns);
      if (off_ns != 0 && kernel_ns > off_ns && kernel_ns <= last_ns && began_ns != INT64_MAX)
        set(meter->outstanding.ran_while_off, true);
      if (atomic_fetch_sub(&meter->outstanding.streams, 1) == 1)
        add(meter->outstanding.sum_ns, meter->driver->now_ns());
      return;
    }
}

void outstanding_note_off(struct meter *meter, int64_t now_ns) {
  set(meter->outstanding.ran_while_off, false);
  set(meter->outstanding.off_ns, now_ns);
}

bool outstanding_note_on(struct meter *meter) {
  set(meter->outstanding.off_ns, 0);
  return get(meter->outstanding.ran_while_off);
}

void outstanding_all_done(struct meter *meter, const void *context, int64_t began_ns) {
  for (struct meter_stream *stream = atomic_load(&meter->streams); stream != NULL; stream = stream->next)
    if (context == NULL || get(stream->context) == context)
      outstanding_done(stream, began_ns);
}

/* Where launches are held, work that nobody asks for, as its thread does something else, counts for as long as can be
 * owed. */
int64_t outstanding_ask(struct meter *meter, int64_t began_ns) {
  struct meter_stream *stream = outstanding_any(meter) ? atomic_load(&meter->streams) : NULL;
  int64_t since_ns = INT64_MAX;
  for (; stream != NULL; stream = stream->next) {
    if (get(stream->outstanding_ns) == 0)
      continue;
    if (get(stream->handle) == NULL || !meter_may_touch(stream))
      outstanding_done(stream, get(meter->holds_launches) ? began_ns - BUCKET_MOST_DEBT_NS : 0);
    else if (meter->driver->is_idle(stream->handle))
      outstanding_done(stream, began_ns);
    else
      since_ns = min(since_ns, get(stream->since_ns));
  }
  return since_ns;
}

/* Between two threads that begin and end at once the sum may not be right for a moment. */
int64_t outstanding_take_ns(struct meter *meter, int64_t now_ns) {
  int64_t sum_ns = atomic_load(&meter->outstanding.sum_ns), before_ns = get(meter->outstanding.taken_ns);
  int64_t total_ns = max(sum_ns < 0 ? sum_ns + now_ns : sum_ns, before_ns);
  set(meter->outstanding.taken_ns, total_ns);
  return total_ns - before_ns;
}
