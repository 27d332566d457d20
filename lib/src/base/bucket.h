/*
 * The token bucket of a device, in nanoseconds of GPU time.
 *
 * Tokens accrue at percent/100 per nanosecond up to BUCKET_BURST_NS and may go below zero. The bucket is one instant:
 * tokens(now) = (now - zero_at) * percent/100. To pay moves it into the future, and a launch waits until it has passed:
 * exactly -tokens / (percent/100). (Known for networks as the virtual scheduling form of the generic cell rate
 * algorithm, ITU-T I.371.)
 *
 * The processes of a container share one in the usage file, and each keeps one of what it has paid itself: so a file
 * that is damaged, or cannot be locked, lets no process have more than the limit. The clock is passed in: every instant
 * is a caller's nanosecond of CLOCK_MONOTONIC.
 */
#pragma once

#include "base/compiler.h"

#define BUCKET_BURST_NS 20000000LL
/* The most that can be owed: it bounds every wait, also where the file is damaged, and forgives what work took beyond
 * that. Two kernels of 300 ms in flight are still paid in full. */
#define BUCKET_MOST_DEBT_NS 1000000000LL

/* The wall time in which gpu_ns accrue. */
static inline int64_t bucket_wall_ns(int64_t gpu_ns, uint32_t percent) {
  return gpu_ns * 100 / max(percent, 1);
}

/* When the bucket stands at zero, no later than can be owed. */
static inline int64_t bucket_zero_at(int64_t zero_at_ns, int64_t now_ns, uint32_t percent) {
  return min(zero_at_ns, now_ns + bucket_wall_ns(BUCKET_MOST_DEBT_NS, percent));
}

/* When the bucket stands at zero after gpu_ns have been paid or, below zero, given back: at paid_ns, which is now or
 * before. Tokens that had accrued by then beyond a burst are lost. */
static inline int64_t bucket_pay(int64_t zero_at_ns, int64_t gpu_ns, int64_t paid_ns, int64_t now_ns,
                                 uint32_t percent) {
  int64_t from_ns = max(zero_at_ns, paid_ns - bucket_wall_ns(BUCKET_BURST_NS, percent));
  return bucket_zero_at(from_ns + bucket_wall_ns(gpu_ns, percent), now_ns, percent);
}
