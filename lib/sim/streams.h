/* Streams: the order of work. A stream knows when its last work ends (times.h); that is all there is to wait for. */
#pragma once

#include "contexts.h"

#define STREAM_LEAST_PRIORITY 0
#define STREAM_GREATEST_PRIORITY (-5)

struct capture;

struct stream {
  CUstream handle;
  struct context *context;
  unsigned flags;
  int priority;
  uint64_t id;
  bool legacy;
  uint64_t tail_ns;        /* when the last work that was put into this stream ends */
  uint64_t *launch_ends;   /* when each of the last launches ends: a ring of launch_queue_depth */
  uint64_t launches;       /* counts up, never wraps */
  struct capture *capture; /* NULL: not capturing */
  uint64_t captured;       /* operations put into the capture from here */
  uint64_t joined;         /* operations among them that another stream of the capture waits for */
};

/* The priority is the nearest of those that there are. */
struct stream *stream_new(struct context *context, unsigned flags, int priority);
void stream_delete(struct stream *stream);
void streams_delete_of(const struct context *context);

/* The stream that a handle means to a function of this kind. */
CUresult stream_find(CUstream handle, enum default_stream default_stream, struct stream **stream);

/* When everything ends that new work in this stream has to wait for. */
uint64_t stream_tail(const struct stream *stream);

/* Nothing in the stream runs before this moment any more. */
void stream_wait_until(struct stream *stream, uint64_t until_ns);

/* Puts work into the stream (not a capturing one). Returns when it ends. */
uint64_t stream_queue(struct stream *stream, uint64_t duration_ns);
uint64_t stream_queue_copy(struct stream *stream, uint64_t duration_ns);

/* Launches are counted: as many as the queue is deep may wait. When there is room for another. */
uint64_t stream_room_at(const struct stream *stream);
void stream_count_launch(struct stream *stream, uint64_t end_ns);

/* When the last work of all streams of a context ends. */
uint64_t streams_latest_tail(const struct context *context);
