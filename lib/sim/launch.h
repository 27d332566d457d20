/* Launching work: what kernels and graphs have in common. */
#pragma once

#include "streams.h"

#define MAX_THREADS_PER_BLOCK 1024
#define MAX_THREADS_PER_MULTIPROCESSOR 2048
#define MAX_SHARED_BYTES (227 * KIB) /* of a block; a multiprocessor has 1 KiB more, and keeps that for each block */

/* Does what stream_enter does, once the stream's launch queue has room. */
CUresult launch_enter(CUstream handle, enum default_stream default_stream, struct stream **stream);

/* When a launch that begins now gives control back: launch_overhead_us from now. 0: at once. */
uint64_t launch_return_at(const struct stream *stream);
