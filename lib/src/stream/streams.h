/* Which meter, and which of its streams, a CUDA stream handle means to the calling thread. */
#ifndef VGPU_STREAM_STREAMS_H
#define VGPU_STREAM_STREAMS_H

#include "compute/meter.h"
#include "device/devices.h"
#include "hook/hooks.h"

/* The last answer, since most threads launch on one stream. */
extern __thread struct streams_last {
  CUstream stream;
  CUcontext context;
  uint32_t generation;
  uint32_t asks_left; /* that the context need not be asked for: with a profile we see when the thread changes it */
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

enum streams_unknown { STREAMS_IGNORE, STREAMS_ADD };
struct meter_stream *streams_look_up(CUstream stream, enum streams_unknown unknown);

/* Should the context have changed without our seeing it, that is noticed soon. */
static inline bool streams_is_last(CUstream stream) {
  if (streams_last.stream != stream || streams_last.asks_left == 0 ||
      streams_last.generation != __atomic_load_n(&streams_generation, __ATOMIC_ACQUIRE))
    return false;
  streams_last.asks_left--;
  return true;
}

/* NULL when the stream is not limited, or cannot be told. */
static inline struct meter_stream *streams_find(CUstream stream) {
  return streams_is_last(stream) ? streams_last.found : streams_look_up(stream, STREAMS_ADD);
}

/* Finds a stream as streams_find does, without making it known to the meter. */
static inline struct meter_stream *streams_find_known(CUstream stream) {
  return streams_is_last(stream) ? streams_last.found : streams_look_up(stream, STREAMS_IGNORE);
}

/* Notes that the calling thread may have another current context from now on. Called while there is a profile. */
void streams_context_changes(void);

/* Call before a stream is destroyed. */
void streams_forget_stream(CUstream stream);

/* Around a call that may destroy a context of the device, whose work runs until it returns. `destroyed` is NULL where
 * it has destroyed none. */
struct streams_pause {
  struct meter *meter;
  bool paused;
};
struct streams_pause streams_pause(const struct device *device);
void streams_resume(struct streams_pause pause, CUcontext destroyed);

#endif
