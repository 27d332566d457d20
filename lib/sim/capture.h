/*
 * Stream capture: work put into a capturing stream becomes nodes of a graph. A capture starts in one stream and
 * spreads to others through events. A call that is not allowed meanwhile fails with the driver's own code and spoils
 * the capture.
 */
#pragma once

#include "graphs.h"
#include "streams.h"

struct event;

struct capture {
  uint64_t id;
  CUstreamCaptureMode mode;
  struct stream *origin;
  const void *thread; /* the thread that began it */
  bool invalid;
  struct graph *graph;
  struct capture *next;
};

CUresult capture_begin(struct stream *stream, CUstreamCaptureMode mode);

/* Ends the capture that began in this stream. The graph is the caller's. */
CUresult capture_end(struct stream *stream, struct graph **graph);

/* A stream of a capture goes away: the capture is spoiled. */
void capture_abandon(struct stream *stream);
void captures_abandon_of(const struct context *context);

/* Adds a node to the capture of a capturing stream. */
CUresult capture_add(struct stream *stream, struct graph_node node);

/* A stream waits for an event, and at least one of them belongs to a capture. */
CUresult capture_wait_event(struct stream *stream, const struct event *event);

/* For calls that may interfere with a capture, such as cuMemAlloc: is this thread kept from them now? */
CUresult capture_check_unsafe_call(void);

/* context_enter() for such a call, with a place for its answer. */
CUresult capture_enter_unsafe_call(const void *output, struct context **context);

/* For querying and waiting, of a stream or of all of a context. */
CUresult capture_check_stream_wait(const struct stream *stream);
CUresult capture_check_context_wait(const struct context *context);

/* For use of a context's legacy stream: a capture in a blocking stream would have to take part. */
CUresult capture_check_legacy(const struct context *context, bool invalidate);

/* An event that was recorded in a capturing stream cannot be waited for by the host. */
CUresult capture_refuse_event(const struct event *event);
