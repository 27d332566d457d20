/* Streams and contexts come and go under the meter. */
#include "meter_parts.h"

#include <sched.h>
#include <stdlib.h>

#define OTHER_THREAD_NS 20000

/* Waits for another thread that opens or closes a batch of the stream; false when that takes too long. */
static bool claim(struct meter_stream *stream) {
  const struct meter_driver *driver = stream->meter->driver;
  int64_t give_up_ns = driver->now_ns() + METER_PATIENCE_NS;
  for (;;) {
    pthread_mutex_lock(&stream->lock);
    bool mine = !stream->claimed;
    stream->claimed = true;
    pthread_mutex_unlock(&stream->lock);
    if (mine || driver->now_ns() >= give_up_ns)
      return mine;
    driver->sleep_ns(OTHER_THREAD_NS);
  }
}

/* With the claim held, which ends here. */
static void start_over(struct meter_stream *stream, void *context, void *handle, void *thread) {
  pthread_mutex_lock(&stream->lock);
  stream->context = context;
  stream->handle = handle;
  stream->thread = thread;
  stream->open = false;
  stream->claimed = false;
  stream->last_busy_ns = 0;
  stream->previous_end_ns = 0;
  stream->scale = 1;
  pthread_mutex_unlock(&stream->lock);
}

/* With the claim held, which ends here. */
static void give_up(struct meter_stream *stream) {
  pthread_mutex_lock(&stream->lock);
  stream->handle = NULL;
  stream->open = false;
  stream->claimed = false;
  pthread_mutex_unlock(&stream->lock);
}

static bool is_of(struct meter_stream *stream, const void *context) {
  pthread_mutex_lock(&stream->lock);
  bool same = stream->context == context;
  pthread_mutex_unlock(&stream->lock);
  return same;
}

/* A removed stream's entry may be taken again once its last markers have been harvested, and nobody works on it. */
static bool claim_unused(struct meter_stream *stream) {
  pthread_mutex_lock(&stream->lock);
  bool unused = stream->handle == NULL && !stream->claimed && meter_is_dry(stream);
  if (unused)
    stream->claimed = true;
  pthread_mutex_unlock(&stream->lock);
  return unused;
}

static struct meter_stream *find_unused(struct meter *meter) {
  for (uint32_t i = 0; i < meter->stream_count; i++)
    if (claim_unused(meter->streams[i]))
      return meter->streams[i];
  return NULL;
}

struct meter_stream *meter_add_stream(struct meter *meter, void *context, void *handle, void *thread) {
  pthread_mutex_lock(&meter->lock);
  struct meter_stream *stream = find_unused(meter);
  bool fresh = stream == NULL && meter->stream_count < METER_MAX_STREAMS;
  if (fresh && (stream = calloc(1, sizeof *stream)) != NULL) {
    stream->meter = meter;
    pthread_mutex_init(&stream->lock, NULL);
  }
  if (stream != NULL)
    start_over(stream, context, handle, thread);
  if (stream != NULL && fresh) {
    meter->streams[meter->stream_count] = stream;
    __atomic_store_n(&meter->stream_count, meter->stream_count + 1, __ATOMIC_RELEASE);
  }
  pthread_mutex_unlock(&meter->lock);
  return stream;
}

void meter_remove_stream(struct meter_stream *stream) {
  if (!claim(stream)) { /* left to the thread that works on it */
    __atomic_store_n(&stream->handle, NULL, __ATOMIC_RELAXED);
    return;
  }
  bool was_open = stream->open;
  stream->open = false;
  if (was_open)
    meter_close_claimed(stream);
  meter_harvest(stream->meter);
  give_up(stream);
}

bool meter_pause(struct meter *meter) {
  meter_close_all(meter);
  meter_harvest(meter);
  /* A harvest is short; the bound is for one that hangs in the driver. */
  for (int tries = 0; tries < 10000; tries++) {
    if (!__atomic_exchange_n(&meter->harvesting, true, __ATOMIC_ACQUIRE))
      return true;
    sched_yield();
  }
  return false;
}

void meter_resume(struct meter *meter, bool paused) {
  if (paused)
    __atomic_store_n(&meter->harvesting, false, __ATOMIC_RELEASE);
}

/* With the claim held. */
static void forget_in_flight(struct meter_stream *stream) {
  while (!meter_is_dry(stream)) {
    meter_show(stream, &stream->ring[stream->tail % METER_RING], 0, 0);
    meter_leave_flight(stream);
  }
  if (stream->open)
    meter_show(stream, &stream->batch, 0, 0);
}

static void forget_timeline(struct meter *meter, void *context) {
  for (uint32_t i = 0; i < meter->timeline_count; i++)
    if (meter->timelines[i].context == context) {
      meter->timelines[i] = meter->timelines[--meter->timeline_count];
      return;
    }
}

void meter_remove_context(struct meter *meter, void *context) {
  uint32_t count = __atomic_load_n(&meter->stream_count, __ATOMIC_ACQUIRE);
  for (uint32_t i = 0; i < count; i++) {
    struct meter_stream *stream = meter->streams[i];
    if (is_of(stream, context) && claim(stream)) {
      forget_in_flight(stream);
      give_up(stream);
    }
  }
  forget_timeline(meter, context);
}
