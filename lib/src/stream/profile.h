/*
 * The profile of this process: what it asks of the driver, how long its launches keep the GPU busy, and what its
 * devices show meanwhile. On when PFLOG names a folder; then the first call of the driver makes a file there.
 */
#pragma once

#include "base/clock.h"
#include "compute/meter.h"
#include "hook/hooks.h"
#include "profile/groups.h"
#include "stream/profile_streams.h"

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
  uint64_t bytes;   /* copied, set or allocated */
  uint8_t copy;     /* PROFILE_HOST_TO_DEVICE and so on */
  CUstream stream;  /* NULL: the default one, or none */
  bool uses_stream; /* for work of its own, or to wait for it */
  bool ends_stream;
  bool waits;           /* for work on any stream */
  bool captures;        /* launches on the stream from now on, until it ends that */
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

/* Before the call. */
static inline void profile_before_call(const struct profile_facts *facts) {
  if (facts->captures)
    profile_streams_capture();
  if (facts->ends_stream)
    profile_streams_end(facts->stream);
  else if (facts->uses_stream)
    profile_streams_use(facts->stream);
  if (facts->waits)
    profile_streams_wait();
}

static inline void profile_call(enum profile_api api, int64_t start_ns, CUresult result,
                                const struct profile_facts *facts) {
  if (facts->changes_context || facts->ends_kernels)
    profile_call_changed(facts->changes_context, facts->ends_kernels);
  if (facts->waits)
    profile_streams_waited();
  profile_call_over((uint32_t)api | (uint32_t)facts->copy << 16, start_ns, result, facts->bytes, facts->stream);
}

/* The number of the current context's device in the file. */
uint8_t profile_device_of_current_context(void);

/* A stream had such launches for that time, of which so much counts for it alone. */
void profile_span(uint8_t device, uint32_t stream, const struct profile_measure *measure, int64_t own_ns,
                  uint32_t launches);

/* The observer for meters; NULL while the profile is off. */
const struct meter_observer *profile_observer(void);
