#include "compute/meter_parts.h"
#include "compute/outstanding.h"

#include <stdlib.h>

/* A removed stream's entry is taken again once nothing is left of its work. */
static struct meter_stream *find_unused(struct meter *meter) {
  struct meter_stream *stream = atomic_load(&meter->streams);
  while (stream != NULL && (get(stream->handle) != NULL || get(stream->outstanding_ns) != 0))
    stream = stream->next;
  return stream;
}

struct meter_stream *meter_add_stream(struct meter *meter, void *context, void *handle) {
  claim_take(&meter->lock);
  struct meter_stream *stream = find_unused(meter);
  if (stream == NULL && (stream = calloc(1, sizeof *stream)) != NULL) {
    stream->meter = meter;
    stream->next = atomic_load(&meter->streams);
    atomic_store(&meter->streams, stream);
  }
  if (stream != NULL) {
    set(stream->context, context);
    set(stream->handle, handle);
  }
  claim_release(&meter->lock);
  return stream;
}

void meter_remove_stream(struct meter_stream *stream) {
  set(stream->handle, NULL);
}

void meter_remove_context(struct meter *meter, void *context) {
  outstanding_all_done(meter, context, INT64_MAX);
  for (struct meter_stream *stream = atomic_load(&meter->streams); stream != NULL; stream = stream->next)
    if (get(stream->context) == context)
      meter_remove_stream(stream);
}

bool meter_may_touch(struct meter_stream *stream) {
  const struct meter_driver *driver = stream->meter->driver;
  return get(stream->launcher) == claim_this_thread() && driver->is_here(get(stream->context)) &&
         !driver->is_capturing(get(stream->handle));
}
