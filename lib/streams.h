/* Which meter, and which of its streams, a CUDA stream handle means to the calling thread. */
#ifndef VGPU_STREAMS_H
#define VGPU_STREAMS_H

#include "cuda_launch.h"

/* NULL when the stream is not limited, or cannot be told. */
struct meter_stream *streams_find(CUstream stream);

/* The same, without making it known to the meter. */
struct meter_stream *streams_find_known(CUstream stream);

/* The calling thread has another current context from now on, or may have. Told while there is a profile. */
void streams_context_changes(void);

#endif
