/* Streams and contexts come and go under the meter. */
#include "meter_parts.h"
#include "signals.h"

#include <stdlib.h>
#include <string.h>

#define OTHER_THREAD_NS 20000
/* A harvest is short, but its thread may be held up; the bound is for one that hangs in the driver. */
#define HARVEST_PATIENCE_NS 1000000000LL

/* Waits for another thread that opens or closes a batch of the stream; false when that takes too long. */
static bool claim(struct meter_stream *stream) {
  const struct meter_driver *driver = stream->meter->driver;
  int64_t give_up_ns = driver->now_ns() + METER_PATIENCE_NS;
  bool mine;
  while (!(mine = meter_claim(stream) || claim_recover(&stream->claim)) && driver->now_ns() < give_up_ns)
    driver->sleep_ns(OTHER_THREAD_NS);
  signals_release();
  return mine;
}

/* With the claim held, which ends here. */
static void start_over(struct meter_stream *stream, void *context, void *handle) {
  __atomic_store_n(&stream->context, context, __ATOMIC_RELAXED);
  __atomic_store_n(&stream->handle, handle, __ATOMIC_RELAXED);
  meter_set_open(stream, false);
  stream->last_busy_ns = 0;
  stream->previous_end_ns = 0;
  memset(stream->paces, 0, sizeof stream->paces);
  memset(stream->seen_at_ns, 0, sizeof stream->seen_at_ns);
  stream->own_gaps = (struct pace){0};
  stream->lead_ns = 0;
  stream->burst_ns = 0;
  stream->doubted_waits = 0;
  stream->checks_next = false;
  stream->checked_rows = 0;
  stream->row_launches = 0;
  __atomic_store_n(&stream->usual_cost_ns, 0, __ATOMIC_RELAXED);
  stream->gpu_until_ns = 0;
  __atomic_store_n(&stream->waited, false, __ATOMIC_RELAXED);
  meter_set_scale(stream, 1);
  meter_unclaim(stream);
}

/* With the claim held, which ends here. */
static void give_up(struct meter_stream *stream) {
  __atomic_store_n(&stream->handle, NULL, __ATOMIC_RELAXED);
  meter_set_open(stream, false);
  meter_unclaim(stream);
}

static bool is_of(const struct meter_stream *stream, const void *context) {
  return __atomic_load_n(&stream->context, __ATOMIC_RELAXED) == context;
}

static bool is_removed(const struct meter_stream *stream) {
  return __atomic_load_n(&stream->handle, __ATOMIC_RELAXED) == NULL;
}

/* A removed stream's entry may be taken again once its last markers have been harvested, and nobody works on it. */
static bool claim_unused(struct meter_stream *stream) {
  if (!is_removed(stream) || !meter_claim(stream))
    return false;
  bool unused = is_removed(stream) && meter_is_dry(stream);
  if (!unused)
    meter_unclaim(stream);
  return unused;
}

static struct meter_stream *find_unused(struct meter *meter) {
  for (uint32_t i = 0; i < meter->stream_count; i++)
    if (claim_unused(meter->streams[i]))
      return meter->streams[i];
  return NULL;
}

struct meter_stream *meter_add_stream(struct meter *meter, void *context, void *handle) {
  claim_take(&meter->lock);
  struct meter_stream *stream = find_unused(meter);
  bool fresh = stream == NULL && meter->stream_count < METER_MAX_STREAMS;
  if (fresh && (stream = aligned_alloc(_Alignof(struct meter_stream), sizeof *stream)) != NULL)
    *stream = (struct meter_stream){.meter = meter, .observer = meter->observer};
  if (stream != NULL)
    start_over(stream, context, handle);
  if (stream != NULL && fresh) {
    meter->streams[meter->stream_count] = stream;
    __atomic_store_n(&meter->stream_count, meter->stream_count + 1, __ATOMIC_RELEASE);
  }
  claim_release(&meter->lock);
  return stream;
}

void meter_remove_stream(struct meter_stream *stream) {
  if (!claim(stream)) { /* left to the thread that works on it */
    __atomic_store_n(&stream->handle, NULL, __ATOMIC_RELAXED);
    return;
  }
  bool was_open = stream->open;
  meter_set_open(stream, false);
  if (was_open)
    meter_mark_end(stream);
  meter_harvest(stream->meter);
  give_up(stream);
}

bool meter_pause(struct meter *meter) {
  meter_close_all(meter);
  meter_harvest(meter);
  const struct meter_driver *driver = meter->driver;
  int64_t give_up_ns = driver->now_ns() + HARVEST_PATIENCE_NS;
  bool mine;
  while (!(mine = claim_try(&meter->harvester) || claim_recover(&meter->harvester)) && driver->now_ns() < give_up_ns)
    driver->sleep_ns(OTHER_THREAD_NS);
  signals_release();
  return mine;
}

void meter_resume(struct meter *meter, bool paused) {
  if (paused)
    claim_release(&meter->harvester);
}

void meter_forget_in_flight(struct meter_stream *stream) {
  while (!meter_is_dry(stream)) {
    meter_show(stream, &stream->ring[stream->tail % METER_RING], 0, 0);
    meter_leave_flight(stream);
  }
}

static void forget_open_batch(struct meter_stream *stream) {
  if (!claim(stream)) /* left to the thread that works on it */
    return;
  if (stream->open)
    meter_show(stream, &stream->batch, 0, 0);
  give_up(stream);
}

void meter_remove_context(struct meter *meter, void *context) {
  uint32_t count = __atomic_load_n(&meter->stream_count, __ATOMIC_ACQUIRE);
  for (uint32_t i = 0; i < count; i++) {
    struct meter_stream *stream = meter->streams[i];
    if (!is_of(stream, context))
      continue;
    __atomic_store_n(&stream->context, NULL, __ATOMIC_RELAXED);
    __atomic_store_n(&stream->handle, NULL, __ATOMIC_RELAXED);
    forget_open_batch(stream);
    if (claim_is_own(&meter->harvester))
      meter_forget_in_flight(stream);
  }
  for (int i = 0; i < METER_MAX_CONTEXTS; i++)
    if (__atomic_load_n(&meter->timelines[i].context, __ATOMIC_RELAXED) == context)
      __atomic_store_n(&meter->timelines[i].context, NULL, __ATOMIC_RELAXED);
}
