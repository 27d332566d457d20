#include "capture.h"

#include <stdlib.h>

#include "events.h"

static struct capture *captures; /* all that go on in this process */

static _Thread_local CUstreamCaptureMode thread_mode = CU_STREAM_CAPTURE_MODE_GLOBAL;
static _Thread_local char thread_mark; /* its address names the thread */

CUresult CUDAAPI cuThreadExchangeStreamCaptureMode(CUstreamCaptureMode *mode) {
  FORWARD_IF_ERROR(driver_enter());
  if (!mode || (unsigned)*mode > CU_STREAM_CAPTURE_MODE_RELAXED)
    return driver_leave(CUDA_ERROR_INVALID_VALUE);
  CUstreamCaptureMode before = thread_mode;
  thread_mode = *mode;
  *mode = before;
  return driver_leave(CUDA_SUCCESS);
}

CUresult capture_begin(struct stream *stream, CUstreamCaptureMode mode) {
  static uint64_t last_id;
  if ((unsigned)mode > CU_STREAM_CAPTURE_MODE_RELAXED)
    return CUDA_ERROR_INVALID_VALUE;
  if (stream->legacy)
    return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
  if (stream->capture)
    return CUDA_ERROR_ILLEGAL_STATE;
  struct capture *capture = calloc(1, sizeof *capture);
  struct graph *graph = graph_new();
  if (!capture || !graph) {
    free(capture);
    if (graph)
      graph_delete(graph);
    return CUDA_ERROR_OUT_OF_MEMORY;
  }
  *capture = (struct capture){.id = ++last_id, .mode = mode, .origin = stream, .thread = &thread_mark, .graph = graph};
  capture->next = captures;
  captures = capture;
  stream->capture = capture;
  stream->captured = stream->joined = 0;
  return CUDA_SUCCESS;
}

static void leave_capture(void *object, void *capture) {
  struct stream *stream = object;
  if (stream->capture == capture)
    stream->capture = NULL;
}

static void finish(struct capture *capture) {
  struct capture **link = &captures;
  while (*link != capture)
    link = &(*link)->next;
  *link = capture->next;
  handle_visit(HANDLE_STREAM, leave_capture, capture);
  free(capture);
}

struct unjoined {
  const struct capture *capture;
  bool found;
};

static void look_for_unjoined(void *object, void *argument) {
  const struct stream *stream = object;
  struct unjoined *unjoined = argument;
  if (stream->capture == unjoined->capture && stream != stream->capture->origin && stream->joined < stream->captured)
    unjoined->found = true;
}

CUresult capture_end(struct stream *stream, struct graph **graph) {
  struct capture *capture = stream->capture;
  if (!capture)
    return CUDA_ERROR_ILLEGAL_STATE;
  if (capture->origin != stream)
    return CUDA_ERROR_STREAM_CAPTURE_UNMATCHED;
  if (capture->mode != CU_STREAM_CAPTURE_MODE_RELAXED && capture->thread != &thread_mark)
    return CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD;
  struct unjoined unjoined = {.capture = capture};
  handle_visit(HANDLE_STREAM, look_for_unjoined, &unjoined);
  CUresult result = capture->invalid ? CUDA_ERROR_STREAM_CAPTURE_INVALIDATED
                    : unjoined.found ? CUDA_ERROR_STREAM_CAPTURE_UNJOINED
                                     : CUDA_SUCCESS;
  if (result == CUDA_SUCCESS)
    *graph = capture->graph;
  else
    graph_delete(capture->graph);
  finish(capture);
  return result;
}

void capture_abandon(struct stream *stream) {
  struct capture *capture = stream->capture;
  if (!capture)
    return;
  capture->invalid = true;
  stream->capture = NULL;
  if (capture->origin != stream)
    return;
  graph_delete(capture->graph);
  finish(capture);
}

static void abandon_if_of(void *object, void *context) {
  struct stream *stream = object;
  if (stream->context == context)
    capture_abandon(stream);
}

void captures_abandon_of(const struct context *context) {
  handle_visit(HANDLE_STREAM, abandon_if_of, (void *)context);
}

CUresult capture_add(struct stream *stream, struct graph_node node) {
  if (stream->capture->invalid)
    return CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
  if (!graph_add(stream->capture->graph, node))
    return CUDA_ERROR_OUT_OF_MEMORY;
  stream->captured++;
  return CUDA_SUCCESS;
}

static struct capture *find_capture(uint64_t id) {
  struct capture *capture = captures;
  while (capture && capture->id != id)
    capture = capture->next;
  return capture;
}

static CUresult spoil(struct capture *capture, CUresult result) {
  if (capture)
    capture->invalid = true;
  return result;
}

CUresult capture_wait_event(struct stream *stream, const struct event *event) {
  struct capture *from = event->capture_id ? find_capture(event->capture_id) : NULL;
  if (stream->capture && stream->capture->invalid)
    return CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
  if (!event->capture_id)
    return event->recorded ? spoil(stream->capture, CUDA_ERROR_STREAM_CAPTURE_ISOLATION) : CUDA_SUCCESS;
  if (!from)
    return CUDA_ERROR_CAPTURED_EVENT;
  if (stream->capture && stream->capture != from) {
    from->invalid = true;
    return spoil(stream->capture, CUDA_ERROR_STREAM_CAPTURE_MERGE);
  }
  if (stream->legacy)
    return spoil(from, CUDA_ERROR_STREAM_CAPTURE_IMPLICIT);
  if (!stream->capture) {
    stream->capture = from;
    stream->captured = stream->joined = 0;
  }
  struct stream *source = handle_object(HANDLE_STREAM, event->capture_stream);
  if (source && source != stream)
    source->joined = max_u64(source->joined, event->captured);
  stream->captured++; /* the wait itself has to be joined too */
  return CUDA_SUCCESS;
}

/* The rules of cuThreadExchangeStreamCaptureMode. */
CUresult capture_check_unsafe_call(void) {
  bool refused = false;
  if (thread_mode == CU_STREAM_CAPTURE_MODE_RELAXED)
    return CUDA_SUCCESS;
  for (struct capture *capture = captures; capture; capture = capture->next) {
    bool ours = capture->thread == &thread_mark && capture->mode != CU_STREAM_CAPTURE_MODE_RELAXED;
    bool global = thread_mode == CU_STREAM_CAPTURE_MODE_GLOBAL && capture->mode == CU_STREAM_CAPTURE_MODE_GLOBAL;
    if (!ours && !global)
      continue;
    capture->invalid = true;
    refused = true;
  }
  return refused ? CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED : CUDA_SUCCESS;
}

CUresult capture_enter_unsafe_call(const void *output, struct context **context) {
  FORWARD_IF_ERROR(context_enter(context));
  CUresult result = output ? capture_check_unsafe_call() : CUDA_ERROR_INVALID_VALUE;
  return result == CUDA_SUCCESS ? CUDA_SUCCESS : driver_leave(result);
}

CUresult capture_check_stream_wait(const struct stream *stream) {
  if (stream->capture)
    return spoil(stream->capture, CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
  return capture_check_unsafe_call();
}

CUresult capture_check_context_wait(const struct context *context) {
  CUresult result = CUDA_SUCCESS;
  for (struct capture *capture = captures; capture; capture = capture->next)
    if (capture->origin->context == context)
      result = spoil(capture, CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
  return result;
}

CUresult capture_check_legacy(const struct context *context, bool invalidate) {
  CUresult result = CUDA_SUCCESS;
  for (struct capture *capture = captures; capture; capture = capture->next) {
    if (capture->origin->context != context || (capture->origin->flags & CU_STREAM_NON_BLOCKING))
      continue;
    result = CUDA_ERROR_STREAM_CAPTURE_IMPLICIT;
    if (invalidate)
      capture->invalid = true;
  }
  return result;
}

CUresult capture_refuse_event(const struct event *event) {
  return spoil(find_capture(event->capture_id), CUDA_ERROR_CAPTURED_EVENT);
}
