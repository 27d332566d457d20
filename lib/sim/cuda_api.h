/* cuda.h with every version of every prototype visible, so that the compiler checks each function that we define. */
#pragma once

#include <stdint.h>
#include <stdlib.h>

/* Exported, and a call inside the driver never lands in a library that is preloaded over it. */
#define __CUDA_API_VERSION_INTERNAL
#pragma GCC visibility push(protected)
#include <cuda.h>
#pragma GCC visibility pop

/* Which default stream a NULL stream means: each function that takes a stream exists once for either. */
enum default_stream { LEGACY_STREAM, PER_THREAD_STREAM };

/* Defines name and its per-thread twin; both pass their arguments to name_on. */
#define STREAM_API(name, twin, parameters, ...)                                                                        \
  CUresult CUDAAPI name parameters {                                                                                   \
    return name##_on(__VA_ARGS__, LEGACY_STREAM);                                                                      \
  }                                                                                                                    \
  CUresult CUDAAPI twin parameters {                                                                                   \
    return name##_on(__VA_ARGS__, PER_THREAD_STREAM);                                                                  \
  }
