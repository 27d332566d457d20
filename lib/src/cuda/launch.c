/* The launch hooks: the launch is noted, and held where the GPU's own scheduler does not hold the limit; the driver
 * does it. */

#include "compute/gate.h"
#include "compute/outstanding.h"
#include "cuda/graph_memory.h"
#include "device/suspension.h"
#include "stream/meters.h"
#include "stream/profile.h"
#include "stream/streams.h"

/* Names what is launched, for the profile. How long a launch takes depends on the kernel and roughly on the size of its
 * grid: with the binary logarithm of that, a kernel that is launched with ever new sizes is still a known one. */
static uint64_t work_of(CUfunction function, uint64_t blocks) {
  return (uint64_t)(uintptr_t)function ^ ((uint64_t)(64 - __builtin_clzll(blocks | 1)) << 56);
}

static uint64_t block_count(unsigned x, unsigned y, unsigned z) {
  uint64_t plane = (uint64_t)x * y, all;
  return __builtin_mul_overflow(plane, (uint64_t)z, &all) ? UINT64_MAX : all;
}

static struct profile_size size_of(uint64_t blocks, unsigned block_x, unsigned block_y, unsigned block_z,
                                   unsigned shared_bytes) {
  return (struct profile_size){blocks, (uint32_t)block_count(block_x, block_y, block_z), shared_bytes};
}

/* The driver refuses a launch without a configuration. */
static struct profile_size size_of_config(const CUlaunchConfig *config) {
  if (config == NULL)
    return (struct profile_size){0};
  return size_of(block_count(config->gridDimX, config->gridDimY, config->gridDimZ), config->blockDimX,
                 config->blockDimY, config->blockDimZ, config->sharedMemBytes);
}

/* Is it certain that the launch need not be looked at? */
static inline bool passes(void) {
  return !profile_is_on() && !meters_measure_launches();
}

/* State carried from begin() to end(). */
struct launch {
  struct meter_stream *metered; /* the stream that is to know when it is done, or NULL */
  struct profile_launch profiled;
  int64_t start_ns;
  bool is_kernel;
};

/* Looks up now and then, also where compute is limited. */
static inline bool is_metered(int64_t now_ns) {
  return process_is_limited() && (meters_have_company(now_ns) || process_limits_compute_somewhere());
}

static void pass(struct meter_stream *stream, int64_t now_ns) {
  bool is_held = atomic_load_explicit(&stream->meter->holds_launches, memory_order_relaxed);
  if (is_held)
    gate_pass(stream, now_ns);
  outstanding_launch(stream, is_held ? quick_clock_ns() : now_ns);
}

/* A graph has no function. */
static HOT struct launch begin(CUstream stream, CUfunction function, uint64_t work, struct profile_size size) {
  struct launch launch = {.start_ns = quick_clock_ns(), .is_kernel = function != NULL};
  struct meter_stream *found = is_metered(launch.start_ns) ? streams_find(stream) : NULL;
  if (found != NULL)
    pass(found, launch.start_ns);
  launch.metered = found;
  if (profile_is_on())
    launch.profiled =
        profile_streams_launch(stream, function, work, &size, found != NULL ? quick_clock_ns() : launch.start_ns);
  return launch;
}

static inline void end(const struct launch *launch, CUresult result) {
  if (__builtin_expect(launch->metered != NULL, 0))
    outstanding_launched(launch->metered, launch->is_kernel && result == CUDA_SUCCESS ? launch->start_ns : 0);
  if (profile_is_on())
    profile_streams_launched(&launch->profiled, result == CUDA_SUCCESS);
}

static HOT CUresult end_and_record(const struct launch *launch, CUresult result, enum profile_api api,
                                   CUstream stream) {
  end(launch, result);
  if (profile_is_on())
    profile_call_over(api, launch->start_ns, result, 0, stream);
  return result;
}

/* A function that launches is entered here, and not in cuda/entries.c: what it is measured for and what is recorded of
 * it is done in one go. */
#define LAUNCH(often, name, parameters, arguments, stream, function, size)                                             \
  static often inline CUresult measured_##name parameters {                                                            \
    if (passes())                                                                                                      \
      return real.name arguments;                                                                                      \
    struct profile_size launched = size;                                                                               \
    struct launch launch = begin(stream, function, work_of(function, launched.blocks), launched);                      \
    return end_and_record(&launch, real.name arguments, API_##name, stream);                                           \
  }                                                                                                                    \
  static often __attribute__((noinline)) CUresult looked_at_##name parameters {                                        \
    return KEEPING_ERRNO((suspension_pass(), measured_##name arguments));                                              \
  }                                                                                                                    \
  HOOK often CUresult entry_##name parameters {                                                                        \
    return __builtin_expect(process_is_free(), 1) ? real.name arguments : looked_at_##name arguments;                  \
  }

#define LAUNCH_KERNEL(name, stream_of)                                                                                 \
  LAUNCH(HOT, name,                                                                                                    \
         (CUfunction function, unsigned grid_x, unsigned grid_y, unsigned grid_z, unsigned block_x, unsigned block_y,  \
          unsigned block_z, unsigned shared_bytes, CUstream stream, void **parameters, void **extra),                  \
         (function, grid_x, grid_y, grid_z, block_x, block_y, block_z, shared_bytes, stream, parameters, extra),       \
         stream_of(stream), function,                                                                                  \
         size_of(block_count(grid_x, grid_y, grid_z), block_x, block_y, block_z, shared_bytes))

LAUNCH_KERNEL(cuLaunchKernel, legacy)
LAUNCH_KERNEL(cuLaunchKernel_ptsz, per_thread)

#define LAUNCH_KERNEL_EX(name, stream_of)                                                                              \
  LAUNCH(HOT, name, (const CUlaunchConfig *config, CUfunction function, void **parameters, void **extra),              \
         (config, function, parameters, extra), stream_of(config != NULL ? config->hStream : NULL), function,          \
         size_of_config(config))

LAUNCH_KERNEL_EX(cuLaunchKernelEx, legacy)
LAUNCH_KERNEL_EX(cuLaunchKernelEx_ptsz, per_thread)

#define LAUNCH_COOPERATIVE(name, stream_of)                                                                            \
  LAUNCH(, name,                                                                                                       \
         (CUfunction function, unsigned grid_x, unsigned grid_y, unsigned grid_z, unsigned block_x, unsigned block_y,  \
          unsigned block_z, unsigned shared_bytes, CUstream stream, void **parameters),                                \
         (function, grid_x, grid_y, grid_z, block_x, block_y, block_z, shared_bytes, stream, parameters),              \
         stream_of(stream), function,                                                                                  \
         size_of(block_count(grid_x, grid_y, grid_z), block_x, block_y, block_z, shared_bytes))

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
    if (passes())                                                                                                      \
      return graph_memory_end(&run, real.name(graph, stream));                                                         \
    struct launch launch = begin(stream_of(stream), NULL, (uint64_t)(uintptr_t)graph, (struct profile_size){0});       \
    result = real.name(graph, stream);                                                                                 \
    end(&launch, result);                                                                                              \
    return graph_memory_end(&run, result);                                                                             \
  }

LAUNCH_GRAPH(cuGraphLaunch, legacy)
LAUNCH_GRAPH(cuGraphLaunch_ptsz, per_thread)
