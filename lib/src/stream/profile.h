/*
 * The profile of this process: what it asks of the driver, how long its launches keep the GPU busy, and what its
 * devices show meanwhile. On when PFLOG names a folder; then the first call of the driver makes a file there.
 */
#ifndef VGPU_STREAM_PROFILE_H
#define VGPU_STREAM_PROFILE_H

#include "base/clock.h"
#include "compute/meter.h"
#include "hook/hooks.h"
#include "profile/kernels.h"

enum profile_state { PROFILE_UNKNOWN, PROFILE_OFF, PROFILE_ON };
extern enum profile_state profile_state;

/* Decides at the first call, and makes the file. */
COLD bool profile_decide(void);

/* The first thing that every call of the driver asks, one load and one branch: is it certain that there is none? */
static inline bool profile_is_off(void) {
  return __atomic_load_n(&profile_state, __ATOMIC_ACQUIRE) == PROFILE_OFF;
}

static inline bool profile_is_on(void) {
  enum profile_state state = __atomic_load_n(&profile_state, __ATOMIC_ACQUIRE);
  return state == PROFILE_ON || (state == PROFILE_UNKNOWN && profile_decide());
}

/* The functions that are recorded, by number. */
enum profile_api {
#define X(name) API_##name,
  CUDA_CAUGHT(X) CUDA_PROFILED(X)
#undef X
      API_COUNT
};

/* The facts of a call that are worth recording. */
struct profile_facts {
  uint64_t bytes;       /* copied, set or allocated */
  uint8_t copy;         /* PROFILE_HOST_TO_DEVICE and so on */
  CUstream stream;      /* NULL: the default one, or none */
  bool changes_context; /* the thread's current one */
  bool ends_kernels;    /* their handles may be others' from now on */
};

/* The handle is an address: its lower half tells the streams of a process apart. */
static inline uint32_t profile_number_of(const void *stream) {
  return stream == CU_STREAM_LEGACY ? 0 : (uint32_t)(uintptr_t)stream;
}

/* Records a call that is over. This and those below only while the profile is on. The facts fit into registers. */
void profile_call_over(uint32_t api_and_copy, int64_t start_ns, CUresult result, uint64_t bytes, CUstream stream);
void profile_call_changed(bool context, bool kernels);

static inline void profile_call(enum profile_api api, int64_t start_ns, CUresult result,
                                const struct profile_facts *facts) {
  if (facts->changes_context || facts->ends_kernels)
    profile_call_changed(facts->changes_context, facts->ends_kernels);
  profile_call_over((uint32_t)api | (uint32_t)facts->copy << 16, start_ns, result, facts->bytes, facts->stream);
}

/* Before and after a launch of a function: its name is asked once. */
COLD void profile_name_kernel(CUfunction function);
static inline void profile_before_launch(CUfunction function) {
  profile_records_fetch_next(); /* which comes while the driver works */
  if (__builtin_expect(!profile_kernels_launch_begins((uint64_t)(uintptr_t)function), 0))
    profile_name_kernel(function);
}
static inline void profile_after_launch(CUresult result) {
  profile_kernels_launch_ends(result == CUDA_SUCCESS);
}

/* The observer for meters; NULL while the profile is off. */
const struct meter_observer *profile_observer(void);

#endif
