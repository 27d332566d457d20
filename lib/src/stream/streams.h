/* Which meter, and which of its streams, a CUDA stream handle means to the calling thread. */
#pragma once

#include "compute/meter.h"
#include "device/devices.h"
#include "hook/hooks.h"

/* The last answer, since most threads launch on one stream. */
extern __thread struct streams_last {
  CUstream stream;
  CUcontext context;
  uint32_t generation;
  struct meter_stream *found;
} streams_last;
extern uint32_t streams_generation; /* changes when a handle loses its meaning */

/* Stream NULL means the legacy stream or, in a _ptsz call, the thread's own. */
static inline CUstream legacy(CUstream stream) {
  return stream != NULL ? stream : CU_STREAM_LEGACY;
}
static inline CUstream per_thread(CUstream stream) {
  return stream != NULL ? stream : CU_STREAM_PER_THREAD;
}

static inline bool streams_is_default(CUstream stream) {
  return stream == CU_STREAM_LEGACY || stream == CU_STREAM_PER_THREAD;
}

/* A handle names its stream alone; the default streams are one for each context, or for each context and thread. Two
 * of them with the same mixed key, which is not to be expected in the life of the universe, would share a batch. */
uint64_t streams_key(CUstream stream, CUcontext context);

enum streams_unknown { STREAMS_IGNORE, STREAMS_ADD };
struct meter_stream *streams_look_up(CUstream stream, enum streams_unknown unknown);

/* NULL when the stream is not limited, or cannot be told. */
static inline struct meter_stream *streams_find(CUstream stream) {
  return streams_look_up(stream, STREAMS_ADD);
}

/* Finds a stream as streams_find does, without making it known to the meter. */
static inline struct meter_stream *streams_find_known(CUstream stream) {
  return streams_look_up(stream, STREAMS_IGNORE);
}

/* Call before a stream is destroyed. */
void streams_forget_stream(CUstream stream);

/* Call after a context of the device has been destroyed, and all of its streams with it. */
void streams_forget_context(const struct device *device, CUcontext context);
