/* Which meter, and which of its streams, a CUDA stream handle means to the calling thread. */
#ifndef VGPU_STREAMS_H
#define VGPU_STREAMS_H

#include "cuda_launch.h"

/* NULL when the stream is not limited, or cannot be told. */
struct meter_stream *streams_find(CUstream stream);

/* The same, without making it known to the meter. */
struct meter_stream *streams_find_known(CUstream stream);

#endif
