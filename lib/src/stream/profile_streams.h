/*
 * The GPU time of launches, for the profile. Each stream that is launched on has groups of launches with a marker
 * before and one behind them. A launch is measured alone while its work is not known well, now and then later on, and
 * where other streams have work as well: how much of the GPU's time was its own, only its end tells. Other launches
 * share a group of half a millisecond.
 *
 * Nothing is held back, and no stream is asked anything: markers are recorded on it, by threads that are using it. So
 * the open group of a stream ends before anything else is done with it, such as a copy or the begin of a capture; and a
 * thread that launches on another stream, or waits, has launched last on the one that it marks.
 */
#pragma once

#include "hook/hooks.h"
#include "profile/groups.h"

struct profile_launch {
  struct profile_stream *stream; /* the stream that measures it; NULL: none */
  struct profile_work *work;
  uint32_t kernel;
  bool counts;               /* not a part of a capture */
  bool is_first, ends_group; /* in the group: its claim is kept meanwhile */
};

/* Around a launch, between those two calls; function NULL is a graph. `work` tells it from others. */
struct profile_launch profile_streams_launch(CUstream stream, CUfunction function, uint64_t work,
                                             const struct profile_size *size, int64_t now_ns);
void profile_streams_launched(const struct profile_launch *launch, bool well);

/* Before anything else is done with the stream, be it captured. */
void profile_streams_use(CUstream stream);

/* Before a call that makes captures possible: from then on launches ask whether they are part of one. */
void profile_streams_capture(void);

/* Around a wait of the program. */
void profile_streams_wait(void);
void profile_streams_waited(void);

/* Before the stream is destroyed. Its work goes on, and is measured. */
void profile_streams_end(CUstream stream);

/* Around a call that may destroy a context; NULL: it has destroyed none. */
bool profile_streams_pause(void);
void profile_streams_resume(bool paused, CUcontext destroyed);

/* The thread may have another current context from now on. */
void profile_streams_context_changes(void);
