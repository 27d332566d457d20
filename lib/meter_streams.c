/* Streams and contexts come and go under the meter. */
#include "meter.h"

#include <sched.h>
#include <stdlib.h>

static bool in_flight(const struct meter_stream *stream) {
  return __atomic_load_n(&stream->tail, __ATOMIC_ACQUIRE) != __atomic_load_n(&stream->head, __ATOMIC_ACQUIRE);
}

static void start_over(struct meter_stream *stream, void *context, void *handle) {
  pthread_mutex_lock(&stream->lock);
  stream->context = context;
  stream->handle = handle;
  stream->open = false;
  stream->claimed = false;
  stream->last_launch_ns = 0;
  stream->scale = 1;
  pthread_mutex_unlock(&stream->lock);
}

/* A removed stream's entry may be taken again once its last markers have been harvested. */
static struct meter_stream *find_unused(struct meter *meter) {
  for (uint32_t i = 0; i < meter->stream_count; i++)
    if (meter->streams[i]->handle == NULL && !in_flight(meter->streams[i]))
      return meter->streams[i];
  return NULL;
}

struct meter_stream *meter_add_stream(struct meter *meter, void *context, void *handle) {
  pthread_mutex_lock(&meter->lock);
  struct meter_stream *stream = find_unused(meter);
  bool fresh = stream == NULL && meter->stream_count < METER_MAX_STREAMS;
  if (fresh)
    stream = calloc(1, sizeof *stream);
  if (stream != NULL && fresh) {
    stream->meter = meter;
    pthread_mutex_init(&stream->lock, NULL);
    meter->streams[meter->stream_count] = stream;
    __atomic_store_n(&meter->stream_count, meter->stream_count + 1, __ATOMIC_RELEASE);
  }
  if (stream != NULL)
    start_over(stream, context, handle);
  pthread_mutex_unlock(&meter->lock);
  return stream;
}

void meter_remove_stream(struct meter_stream *stream) {
  meter_close(stream);
  meter_harvest(stream->meter);
  stream->handle = NULL;
}

static void forget_in_flight(struct meter *meter, struct meter_stream *stream) {
  for (; in_flight(stream); stream->tail++) {
    __atomic_sub_fetch(&meter->in_flight_ns, stream->ring[stream->tail % METER_RING].estimate_ns, __ATOMIC_RELAXED);
    __atomic_sub_fetch(&meter->in_flight_batches, 1, __ATOMIC_RELAXED);
  }
  start_over(stream, NULL, NULL);
}

static void forget_timeline(struct meter *meter, void *context) {
  for (uint32_t i = 0; i < meter->timeline_count; i++)
    if (meter->timelines[i].context == context) {
      meter->timelines[i] = meter->timelines[--meter->timeline_count];
      return;
    }
}

void meter_remove_context(struct meter *meter, void *context) {
  meter_close_all(meter);
  meter_harvest(meter);
  /* Keep other threads from asking for markers that are about to vanish; a harvest is short, and the bound is for one
   * that hangs in the driver. */
  bool claimed = false;
  for (int tries = 0; tries < 10000 && !claimed; tries++) {
    claimed = !__atomic_exchange_n(&meter->harvesting, true, __ATOMIC_ACQUIRE);
    if (!claimed)
      sched_yield();
  }
  for (uint32_t i = 0; i < __atomic_load_n(&meter->stream_count, __ATOMIC_ACQUIRE); i++)
    if (meter->streams[i]->context == context)
      forget_in_flight(meter, meter->streams[i]);
  forget_timeline(meter, context);
  __atomic_store_n(&meter->harvesting, false, __ATOMIC_RELEASE);
}
