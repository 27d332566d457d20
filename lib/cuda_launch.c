/* The launch hooks: the meter holds the launch back and measures it, the driver does it. */
#include "cuda_launch.h"

#include "cuda_graph_memory.h"
#include "meters.h"
#include "profile.h"
#include "streams.h"

/* What a launch costs depends on the kernel and roughly on the size of its grid: with the binary logarithm of that,
 * a kernel that is launched with ever new sizes is still a known one. */
static uint64_t work_of(CUfunction function, uint64_t blocks) {
  return (uint64_t)(uintptr_t)function ^ ((uint64_t)(64 - __builtin_clzll(blocks | 1)) << 56);
}

static uint64_t block_count(unsigned x, unsigned y, unsigned z) {
  uint64_t plane = (uint64_t)x * y, all;
  return __builtin_mul_overflow(plane, (uint64_t)z, &all) ? UINT64_MAX : all;
}

/* Around every launch: the stream that is to know when it is done, or NULL. A graph has no function. */
static struct meter_stream *begin(CUstream stream, CUfunction function, uint64_t work, int64_t now_ns) {
  if (profile_is_on())
    profile_before_launch(function);
  struct meter_stream *found = streams_find(stream);
  return found != NULL && meter_launch(found, work, now_ns) ? found : NULL;
}

static CUresult end(struct meter_stream *metered, CUresult result) {
  if (metered != NULL)
    meter_launched(metered);
  if (profile_is_on())
    profile_after_launch(result);
  return result;
}

#define LAUNCH_KERNEL(name, stream_of)                                                                                 \
  HOOK CUresult name(CUfunction function, unsigned grid_x, unsigned grid_y, unsigned grid_z, unsigned block_x,         \
                     unsigned block_y, unsigned block_z, unsigned shared_bytes, CUstream stream, void **parameters,    \
                     void **extra) {                                                                                   \
    int64_t now_ns = meters_launch_ns();                                                                               \
    if (__builtin_expect(now_ns == 0, 1))                                                                              \
      return real.name(function, grid_x, grid_y, grid_z, block_x, block_y, block_z, shared_bytes, stream, parameters,  \
                       extra);                                                                                         \
    struct meter_stream *metered =                                                                                     \
        begin(stream_of(stream), function, work_of(function, block_count(grid_x, grid_y, grid_z)), now_ns);            \
    return end(metered, real.name(function, grid_x, grid_y, grid_z, block_x, block_y, block_z, shared_bytes, stream,   \
                                  parameters, extra));                                                                 \
  }

LAUNCH_KERNEL(cuLaunchKernel, legacy)
LAUNCH_KERNEL(cuLaunchKernel_ptsz, per_thread)

#define LAUNCH_KERNEL_EX(name, stream_of)                                                                              \
  HOOK CUresult name(const CUlaunchConfig *config, CUfunction function, void **parameters, void **extra) {             \
    int64_t now_ns = config != NULL ? meters_launch_ns() : 0;                                                          \
    if (__builtin_expect(now_ns == 0, 1))                                                                              \
      return real.name(config, function, parameters, extra);                                                           \
    struct meter_stream *metered =                                                                                     \
        begin(stream_of(config->hStream), function,                                                                    \
              work_of(function, block_count(config->gridDimX, config->gridDimY, config->gridDimZ)), now_ns);           \
    return end(metered, real.name(config, function, parameters, extra));                                               \
  }

LAUNCH_KERNEL_EX(cuLaunchKernelEx, legacy)
LAUNCH_KERNEL_EX(cuLaunchKernelEx_ptsz, per_thread)

#define LAUNCH_COOPERATIVE(name, stream_of)                                                                            \
  HOOK CUresult name(CUfunction function, unsigned grid_x, unsigned grid_y, unsigned grid_z, unsigned block_x,         \
                     unsigned block_y, unsigned block_z, unsigned shared_bytes, CUstream stream, void **parameters) {  \
    int64_t now_ns = meters_launch_ns();                                                                               \
    if (__builtin_expect(now_ns == 0, 1))                                                                              \
      return real.name(function, grid_x, grid_y, grid_z, block_x, block_y, block_z, shared_bytes, stream, parameters); \
    struct meter_stream *metered =                                                                                     \
        begin(stream_of(stream), function, work_of(function, block_count(grid_x, grid_y, grid_z)), now_ns);            \
    return end(metered, real.name(function, grid_x, grid_y, grid_z, block_x, block_y, block_z, shared_bytes, stream,   \
                                  parameters));                                                                        \
  }

LAUNCH_COOPERATIVE(cuLaunchCooperativeKernel, legacy)
LAUNCH_COOPERATIVE(cuLaunchCooperativeKernel_ptsz, per_thread)

#define LAUNCH_GRAPH(name, stream_of)                                                                                  \
  HOOK CUresult name(CUgraphExec graph, CUstream stream) {                                                             \
    if (__builtin_expect(!process_is_limited(), 1))                                                                    \
      return real.name(graph, stream);                                                                                 \
    struct graph_run run;                                                                                              \
    CUresult result = graph_memory_begin(&run, graph, stream_of(stream));                                              \
    if (result != CUDA_SUCCESS)                                                                                        \
      return result;                                                                                                   \
    int64_t now_ns = meters_launch_ns();                                                                               \
    struct meter_stream *metered =                                                                                     \
        now_ns != 0 ? begin(stream_of(stream), NULL, (uint64_t)(uintptr_t)graph, now_ns) : NULL;                       \
    return graph_memory_end(&run, end(metered, real.name(graph, stream)));                                             \
  }

LAUNCH_GRAPH(cuGraphLaunch, legacy)
LAUNCH_GRAPH(cuGraphLaunch_ptsz, per_thread)
