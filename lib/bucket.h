/*
 * The token bucket of a device, in nanoseconds of GPU time, shared by all processes of a container.
 *
 * Tokens accrue at percent/100 per nanosecond up to BUCKET_BURST_NS and may go below zero. The bucket is kept as one
 * instant: tokens(now) = (now - zero_at) * percent/100. Charging moves it into the future, and a
 * launch waits until it has passed: exactly -tokens / (percent/100). One word, tokens_zero_at, has it and the
 * percentage, and is changed by compare-and-swap: a process that is killed while it charges, or while the limit
 * changes, leaves nothing half done. (Known for networks as the virtual scheduling form of the generic cell rate
 * algorithm, ITU-T I.371.)
 *
 * The clock is passed in: every instant is a caller's nanosecond of CLOCK_MONOTONIC.
 */
#ifndef VGPU_BUCKET_H
#define VGPU_BUCKET_H

#include "abi.h"

#define BUCKET_BURST_NS 20000000LL
/* What one process can owe at most: bounds every wait, also against a damaged file. */
#define BUCKET_MAX_DEBT_NS 10000000000LL

/* Charges the GPU time from start_ns to end_ns, less what has been charged of it already: several streams and several
 * processes pay for the union of their intervals, whichever comes first (holes.h). Instants after now_ns are cut off.
 * Returns what was charged. */
int64_t bucket_charge(struct vgpu_device_shared *device, int64_t start_ns, int64_t end_ns, int64_t now_ns,
                      uint32_t sm_percent);

/* Takes tokens for that time as if it were work, though nothing ran in it. */
void bucket_pay(struct vgpu_device_shared *device, int64_t start_ns, int64_t end_ns, int64_t now_ns,
                uint32_t sm_percent);

/* To be called before the others when the limit may have changed: what is owed at the old one is owed on, as GPU time.
 */
void bucket_follow_limit(struct vgpu_device_shared *device, int64_t now_ns, uint32_t sm_percent);

/* What is owed is not to be paid: nobody else wanted the GPU. */
void bucket_forgive(struct vgpu_device_shared *device, int64_t now_ns);

/* When a launch may go ahead: now_ns or earlier means now. */
int64_t bucket_open_at(struct vgpu_device_shared *device, int64_t now_ns, uint32_t sm_percent);

#endif
