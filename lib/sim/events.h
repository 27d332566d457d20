/* Events: a moment on a stream. */
#pragma once

#include "cuda_api.h"
#include "handles.h"

struct context;

struct event {
  CUevent handle;
  const struct context *context;
  unsigned flags;
  bool recorded;
  uint64_t time_ns;        /* when it completes */
  uint64_t capture_id;     /* the capture that it was last recorded in; 0: none */
  CUstream capture_stream; /* the stream of that capture */
  uint64_t captured;       /* and behind how many operations */
};

void event_record_at(struct event *event, uint64_t time_ns);
void event_delete(struct event *event);

/* Events that have completed keep their times from then on. */
void events_find_times(void);

void events_delete_of(const struct context *context);
