/* Launching work: what kernels and graphs have in common. */
#ifndef SIM_LAUNCH_H
#define SIM_LAUNCH_H

#include "streams.h"

/* As stream_enter, once there is room in the stream's launch queue. */
CUresult launch_enter(CUstream handle, enum default_stream default_stream, struct stream **stream);

/* When a launch that begins now gives control back: launch_overhead_us from now. 0: at once. */
uint64_t launch_return_at(const struct stream *stream);

#endif
