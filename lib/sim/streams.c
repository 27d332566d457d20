#include "streams.h"

#include <stdlib.h>

#include "events.h"
#include "timeline.h"
#include "times.h"

/* The per-thread default streams of this thread. Their contexts free them; a thread that ends leaves them until then.
 */
struct thread_stream {
  CUcontext context;
  CUstream stream;
};
static _Thread_local struct thread_stream thread_streams[SIM_MAX_DEVICES];

struct stream *stream_new(struct context *context, unsigned flags, int priority) {
  static uint64_t last_id;
  struct stream *stream = calloc(1, sizeof *stream);
  if (!stream)
    return NULL;
  size_t depth = sim_config.devices[context->device].launch_queue_depth;
  stream->launch_ends = calloc(depth, sizeof *stream->launch_ends);
  stream->handle = handle_new(HANDLE_STREAM, stream);
  if (!stream->launch_ends || !stream->handle) {
    handle_delete(stream->handle);
    free(stream->launch_ends);
    free(stream);
    return NULL;
  }
  stream->context = context;
  stream->flags = flags;
  stream->priority = priority > STREAM_LEAST_PRIORITY      ? STREAM_LEAST_PRIORITY
                     : priority < STREAM_GREATEST_PRIORITY ? STREAM_GREATEST_PRIORITY
                                                           : priority;
  stream->id = ++last_id;
  return stream;
}

/* Work that is queued goes on, as on a card: the timeline keeps it. */
void stream_delete(struct stream *stream) {
  stream->context->gone_tail_ns = time_later(stream->context->gone_tail_ns, stream->tail_ns);
  handle_delete(stream->handle);
  free(stream->launch_ends);
  free(stream);
}

static void delete_if_of(void *object, void *context) {
  struct stream *stream = object;
  if (stream->context == context)
    stream_delete(stream);
}

void streams_delete_of(const struct context *context) {
  handle_visit(HANDLE_STREAM, delete_if_of, (void *)context);
}

static CUresult per_thread(struct context *context, struct stream **stream) {
  struct thread_stream *entry = NULL;
  for (unsigned i = 0; i < SIM_MAX_DEVICES && !entry; i++)
    if (thread_streams[i].context == context->handle)
      entry = &thread_streams[i];
  for (unsigned i = 0; i < SIM_MAX_DEVICES && !entry; i++)
    if (!handle_object(HANDLE_CONTEXT, thread_streams[i].context))
      entry = &thread_streams[i];
  if (!entry)
    return CUDA_ERROR_OUT_OF_MEMORY;
  *stream = handle_object(HANDLE_STREAM, entry->stream);
  if (entry->context != context->handle || !*stream)
    *stream = stream_new(context, CU_STREAM_DEFAULT, 0);
  if (!*stream)
    return CUDA_ERROR_OUT_OF_MEMORY;
  *entry = (struct thread_stream){context->handle, (*stream)->handle};
  return CUDA_SUCCESS;
}

CUresult stream_find(CUstream handle, enum default_stream default_stream, struct stream **stream) {
  struct context *context;
  FORWARD_IF_ERROR(context_current(&context));
  if (!handle)
    handle = default_stream == LEGACY_STREAM ? CU_STREAM_LEGACY : CU_STREAM_PER_THREAD;
  if (handle == CU_STREAM_PER_THREAD)
    return per_thread(context, stream);
  *stream = handle == CU_STREAM_LEGACY ? context->legacy : handle_object(HANDLE_STREAM, handle);
  return *stream ? CUDA_SUCCESS : CUDA_ERROR_INVALID_HANDLE;
}

static bool is_blocking(const struct stream *stream) {
  return !(stream->flags & CU_STREAM_NON_BLOCKING);
}

uint64_t stream_tail(const struct stream *stream) {
  if (stream->legacy)
    return time_later(stream->tail_ns, stream->context->blocking_tail_ns);
  if (is_blocking(stream))
    return time_later(stream->tail_ns, stream->context->legacy_tail_ns);
  return stream->tail_ns;
}

/* The events of a process learn their times before the queue of a group forgets them. */
static void look_at_events(struct context *context) {
  uint64_t half_rounds = timeline_half_rounds(context->group);
  if (half_rounds == context->half_rounds)
    return;
  context->half_rounds = half_rounds;
  events_find_times();
}

/* The stream has new work, or a new time to wait for. */
static void set_tail(struct stream *stream, uint64_t tail_ns) {
  struct context *context = stream->context;
  stream->tail_ns = tail_ns;
  if (is_blocking(stream))
    context->blocking_tail_ns = time_later(context->blocking_tail_ns, tail_ns);
  if (stream->legacy)
    context->legacy_tail_ns = time_later(context->legacy_tail_ns, tail_ns);
  look_at_events(context);
}

void stream_wait_until(struct stream *stream, uint64_t until_ns) {
  set_tail(stream, time_later(stream->tail_ns, time_in_group(stream->context->group, until_ns)));
}

static uint64_t queue(struct stream *stream, struct work work) {
  unsigned group = stream->context->group;
  work.after = time_in_group(group, stream_tail(stream));
  bool knows_tail = time_is_known(work.after) || time_is_piece(work.after);
  uint64_t end_ns = knows_tail ? timeline_queue(group, work) : work.after + work.duration_ns; /* behind a spin */
  set_tail(stream, end_ns);
  return end_ns;
}

uint64_t stream_queue(struct stream *stream, uint64_t duration_ns) {
  return queue(stream, (struct work){.duration_ns = duration_ns});
}

uint64_t stream_queue_copy(struct stream *stream, uint64_t duration_ns) {
  return queue(stream, (struct work){.duration_ns = duration_ns, .is_copy = true});
}

static uint64_t *oldest_launch(const struct stream *stream) {
  size_t depth = sim_config.devices[stream->context->device].launch_queue_depth;
  return &stream->launch_ends[stream->launches % depth];
}

uint64_t stream_room_at(const struct stream *stream) {
  return time_known(*oldest_launch(stream));
}

void stream_count_launch(struct stream *stream, uint64_t end_ns) {
  *oldest_launch(stream) = end_ns;
  stream->launches++;
}

struct latest {
  const struct context *context;
  uint64_t tail_ns;
};

static void add_tail(void *object, void *argument) {
  const struct stream *stream = object;
  struct latest *latest = argument;
  if (stream->context == latest->context)
    latest->tail_ns = time_later(latest->tail_ns, stream->tail_ns);
}

uint64_t streams_latest_tail(const struct context *context) {
  struct latest latest = {context, time_later(context->blocking_tail_ns, context->gone_tail_ns)};
  handle_visit(HANDLE_STREAM, add_tail, &latest);
  return latest.tail_ns;
}
