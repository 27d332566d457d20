/* The launch hooks: the meter holds the launch back and measures it, the driver does it. */

#include "cuda/graph_memory.h"
#include "device/suspension.h"
#include "stream/launch_runs.h"
#include "stream/meters.h"
#include "stream/profile.h"
#include "stream/streams.h"

/* The cost of a launch depends on the kernel and roughly on the size of its grid: with the binary logarithm of that,
 * a kernel that is launched with ever new sizes is still a known one. */
static uint64_t work_of(CUfunction function, uint64_t blocks) {
  return (uint64_t)(uintptr_t)function ^ ((uint64_t)(64 - __builtin_clzll(blocks | 1)) << 56);
}

static uint64_t block_count(unsigned x, unsigned y, unsigned z) {
  uint64_t plane = (uint64_t)x * y, all;
  return __builtin_mul_overflow(plane, (uint64_t)z, &all) ? UINT64_MAX : all;
}

/* In a grid that can be launched only the first of its sizes may need more than 16 bits (CUDA C++ Programming Guide,
 * Compute Capabilities). */
static uint64_t shape_of(unsigned x, unsigned y, unsigned z) {
  return x ^ (uint64_t)y << 32 ^ (uint64_t)z << 48;
}

/* Is it certain that the launch need not be looked at? */
static inline bool passes(void) {
  return !profile_is_on() && !meters_measure_launches();
}

/* State carried from begin() to end(). */
struct launch {
  struct meter_stream *metered; /* that is to know when it is done, or NULL */
  int64_t start_ns;
};

/* A graph has no function. */
static HOT struct launch begin(CUstream stream, CUfunction function, uint64_t work) {
  launch_run_end();
  struct launch launch = {.start_ns = quick_clock_ns()};
  meters_have_company(launch.start_ns); /* looks up now and then, also where passes() had no need to */
  if (profile_is_on())
    profile_before_launch(function);
  struct meter_stream *found = streams_find(stream);
  if (found != NULL && meter_launch(found, work, launch.start_ns))
    launch.metered = found;
  return launch;
}

static inline void end(struct launch launch, CUresult result) {
  if (__builtin_expect(launch.metered != NULL, 0))
    meter_launched(launch.metered);
  if (profile_is_on())
    profile_after_launch(result);
}

static HOT CUresult end_and_record(struct launch launch, CUresult result, enum profile_api api, CUstream stream,
                                   CUfunction function, uint64_t shape, uint64_t work) {
  end(launch, result);
  if (profile_is_on()) {
    profile_call_over(api, launch.start_ns, result, 0, stream);
    if (launch.metered == NULL) /* its batch goes on */
      launch_run_begin(api, stream, function, shape, work, launch.start_ns);
  }
  return result;
}

static COLD CUresult failed_in_run(int64_t start_ns, CUresult result, enum profile_api api, CUstream stream) {
  launch_run_end();
  if (profile_is_on())
    profile_call_over(api, start_ns, result, 0, stream);
  return result;
}

static COLD CUresult failed_untimed(CUresult result, enum profile_api api, CUstream stream) {
  launch_run_take_back();
  return KEEPING_ERRNO(failed_in_run(quick_clock_ns(), result, api, stream));
}

/* A function that launches is entered here, and not in cuda/entries.c: what it is measured for and what is recorded of
 * it is done in one go. To go on with a run are functions of their own, which keep nothing for what others may need. */
#define LAUNCH(often, name, parameters, arguments, stream, function, shape, work)                                      \
  static often inline CUresult measured_##name parameters {                                                            \
    if (passes())                                                                                                      \
      return real.name arguments;                                                                                      \
    uint64_t key = work;                                                                                               \
    struct launch launch = begin(stream, function, key);                                                               \
    return end_and_record(launch, real.name arguments, API_##name, stream, function, shape, key);                      \
  }                                                                                                                    \
  static often __attribute__((noinline)) CUresult looked_at_##name parameters {                                        \
    return KEEPING_ERRNO((suspension_pass(), measured_##name arguments));                                              \
  }                                                                                                                    \
  static often inline CUresult measured_in_run_##name parameters {                                                     \
    int64_t start_ns;                                                                                                  \
    if (__builtin_expect(!quick_clock_read(&start_ns) || !launch_run_goes_on(start_ns), 0))                            \
      return looked_at_##name arguments;                                                                               \
    CUresult result = real.name arguments;                                                                             \
    if (__builtin_expect(result != CUDA_SUCCESS, 0))                                                                   \
      return failed_in_run(start_ns, result, API_##name, stream);                                                      \
    launch_run_add(start_ns, quick_clock_ns());                                                                        \
    return result;                                                                                                     \
  }                                                                                                                    \
  static often __attribute__((noinline)) CUresult timed_##name parameters {                                            \
    return KEEPING_ERRNO(measured_in_run_##name arguments);                                                            \
  }                                                                                                                    \
  static often __attribute__((noinline)) CUresult counted_##name parameters {                                          \
    CUresult result = real.name arguments;                                                                             \
    return __builtin_expect(result == CUDA_SUCCESS, 1) ? result : failed_untimed(result, API_##name, stream);          \
  }                                                                                                                    \
  HOOK often CUresult entry_##name parameters {                                                                        \
    __typeof__(real.name) next = real.name;                                                                            \
    if (__builtin_expect(!process_is_free(), 0)) {                                                                     \
      next = looked_at_##name;                                                                                         \
      if (launch_run_is_of(function, launch_run_call(API_##name, stream), shape) && !process_is_suspended())           \
        next = launch_run_counts() ? counted_##name : timed_##name;                                                    \
    }                                                                                                                  \
    return next arguments;                                                                                             \
  }

#define LAUNCH_KERNEL(name, stream_of)                                                                                 \
  LAUNCH(HOT, name,                                                                                                    \
         (CUfunction function, unsigned grid_x, unsigned grid_y, unsigned grid_z, unsigned block_x, unsigned block_y,  \
          unsigned block_z, unsigned shared_bytes, CUstream stream, void **parameters, void **extra),                  \
         (function, grid_x, grid_y, grid_z, block_x, block_y, block_z, shared_bytes, stream, parameters, extra),       \
         stream_of(stream), function, shape_of(grid_x, grid_y, grid_z),                                                \
         work_of(function, block_count(grid_x, grid_y, grid_z)))

LAUNCH_KERNEL(cuLaunchKernel, legacy)
LAUNCH_KERNEL(cuLaunchKernel_ptsz, per_thread)

#define LAUNCH_KERNEL_EX(name, stream_of)                                                                              \
  LAUNCH(HOT, name, (const CUlaunchConfig *config, CUfunction function, void **parameters, void **extra),              \
         (config, function, parameters, extra), stream_of(config != NULL ? config->hStream : NULL), function,          \
         config != NULL ? shape_of(config->gridDimX, config->gridDimY, config->gridDimZ) : 0,                          \
         work_of(function, config != NULL ? block_count(config->gridDimX, config->gridDimY, config->gridDimZ) : 0))

LAUNCH_KERNEL_EX(cuLaunchKernelEx, legacy)
LAUNCH_KERNEL_EX(cuLaunchKernelEx_ptsz, per_thread)

#define LAUNCH_COOPERATIVE(name, stream_of)                                                                            \
  LAUNCH(, name,                                                                                                       \
         (CUfunction function, unsigned grid_x, unsigned grid_y, unsigned grid_z, unsigned block_x, unsigned block_y,  \
          unsigned block_z, unsigned shared_bytes, CUstream stream, void **parameters),                                \
         (function, grid_x, grid_y, grid_z, block_x, block_y, block_z, shared_bytes, stream, parameters),              \
         stream_of(stream), function, shape_of(grid_x, grid_y, grid_z),                                                \
         work_of(function, block_count(grid_x, grid_y, grid_z)))

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
    struct launch launch = begin(stream_of(stream), NULL, (uint64_t)(uintptr_t)graph);                                 \
    result = real.name(graph, stream);                                                                                 \
    end(launch, result);                                                                                               \
    return graph_memory_end(&run, result);                                                                             \
  }

LAUNCH_GRAPH(cuGraphLaunch, legacy)
LAUNCH_GRAPH(cuGraphLaunch_ptsz, per_thread)
