/* Streams and contexts come and go under the meter. */
#include "compute/meter_parts.h"
#include "compute/outstanding.h"

#include <stdlib.h>
#include <string.h>

/* A removed stream's entry may be taken again once its last markers have been harvested, and nobody works on it. */
static struct meter_stream *claim_unused(struct meter *meter) {
  for (uint32_t i = 0; i < meter->stream_count; i++) {
    struct meter_stream *stream = meter->streams[i];
    if (get(stream->handle) != NULL || !meter_claim(stream))
      continue;
    if (get(stream->handle) == NULL && meter_is_dry(stream))
      return stream;
    meter_unclaim(stream);
  }
  return NULL;
}

void meter_init(struct meter *meter, const struct meter_driver *driver, struct meter_terms (*terms)(const void *owner),
                const void *owner) {
  memset(meter, 0, sizeof *meter);
  meter->driver = driver;
  meter->terms = terms;
  meter->owner = owner;
  meter->valve.patience_ns = METER_PATIENCE_NS;
}

void meter_add_bucket(struct meter *meter, struct device_state *state, struct device_state *const *others) {
  struct meter_bucket *bucket = &meter->buckets[meter->bucket_count++];
  bucket->meter = meter;
  bucket->state = state;
  bucket->others = others;
}

struct meter_terms meter_terms(struct meter *meter) {
  struct meter_terms terms = meter->terms(meter->owner);
  for (int i = 0; i < meter->bucket_count; i++)
    set(meter->buckets[i].percent, terms.percents[i]);
  return terms;
}

struct meter_stream *meter_add_stream(struct meter *meter, void *context, void *handle) {
  claim_take(&meter->lock);
  struct meter_stream *stream = claim_unused(meter);
  bool fresh = stream == NULL && meter->stream_count < METER_MAX_STREAMS;
  if (fresh && (stream = aligned_alloc(_Alignof(struct meter_stream), sizeof *stream)) != NULL)
    *stream = (struct meter_stream){
        .meter = meter,
        .observer = meter->observer != NULL && meter->observer->joined != NULL ? meter->observer : NULL};
  if (stream != NULL) {
    set(stream->context, context);
    set(stream->handle, handle);
    set(stream->open, false);
    set(stream->has_clock, false);
    set(stream->is_behind, false);
    stream->previous_end_ns = 0;
    stream->batches = 0;
    meter_unclaim(stream);
  }
  if (stream != NULL && fresh) {
    meter->streams[get(meter->stream_count)] = stream;
    atomic_store_explicit(&meter->stream_count, get(meter->stream_count) + 1, memory_order_release);
  }
  claim_release(&meter->lock);
  return stream;
}

void meter_remove_stream(struct meter_stream *stream) {
  bool mine = meter_claim_patiently(stream->meter->driver, &stream->claim); /* else left to the thread that has it */
  if (mine && swap(stream->open, false)) {
    if (meter_is_destroyed(stream))
      meter_drop(stream, &stream->batch);
    else
      meter_end_now(stream);
  }
  set(stream->handle, NULL);
  if (mine)
    meter_unclaim(stream);
}

bool meter_pause(struct meter *meter) {
  meter_close_all(meter);
  meter_harvest(meter);
  return meter_claim_patiently(meter->driver, &meter->harvester);
}

void meter_remove_context(struct meter *meter, void *context) {
  uint32_t count = atomic_load(&meter->stream_count);
  outstanding_all_done(meter, context, INT64_MAX);
  for (uint32_t i = 0; i < count; i++) {
    struct meter_stream *stream = meter->streams[i];
    if (get(stream->context) != context)
      continue;
    set(stream->context, NULL);
    meter_remove_stream(stream);
  }
  for (int i = 0; i < METER_MAX_CONTEXTS; i++)
    if (get(meter->timelines[i].context) == context)
      set(meter->timelines[i].context, NULL);
}

void meter_resume(struct meter *meter, bool paused) {
  if (paused)
    claim_release(&meter->harvester);
  meter_harvest(meter);
}
