/*
 * The meter of each device, made at the first launch of a limited process, and whether launches are measured at all:
 * where compute is limited or paused, where another tenant uses the GPU, where memory takes turns (--swap). Any other
 * process without a compute limit that is alone on its GPUs is measured nowhere, and looks up every now and then.
 */
#pragma once

#include "base/clock.h"
#include "compute/meter.h"
#include "device/devices.h"
#include "device/process.h"
#include "hook/hooks.h"

struct meters_watch {
  int64_t refresh_at_ns;
  bool company; /* on any GPU of ours, at the last refresh */
  bool meters;  /* has any been made? */
};
extern struct meters_watch meters_watch;

COLD bool meters_refresh_company(int64_t now_ns);

static inline bool meters_have_company(int64_t now_ns) {
  if (__builtin_expect(now_ns < __atomic_load_n(&meters_watch.refresh_at_ns, __ATOMIC_RELAXED), 1))
    return __atomic_load_n(&meters_watch.company, __ATOMIC_RELAXED);
  return meters_refresh_company(now_ns);
}

/* Asked by every launch: is it measured? Where compute is not limited, each looks up by a coarse clock, which costs a
 * few nanoseconds. */
static inline bool meters_measure_launches(void) {
  return process_is_limited() && (process_limits_compute_somewhere() || meters_have_company(clock_coarse_ns()));
}

/* Asked where the program waits: is anything measured, as far as the launches have found? */
static inline bool meters_measure(void) {
  return __atomic_load_n(&meters_watch.meters, __ATOMIC_RELAXED) &&
         (__atomic_load_n(&meters_watch.company, __ATOMIC_RELAXED) || process_limits_compute_somewhere());
}

/* Is there anything to forget when a stream or a context goes? */
static inline bool meters_exist(void) {
  return __atomic_load_n(&meters_watch.meters, __ATOMIC_RELAXED);
}

/* The current device's meter, or NULL where nothing is measured now. */
struct meter *meters_current(void);

/* The meters' driver, on CUDA. */
extern const struct meter_driver meters_driver;
