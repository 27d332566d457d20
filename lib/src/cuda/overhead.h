/* Device memory that the driver takes for itself, by NVML's figures: contexts, modules, fragmentation. Memory that a
 * context takes when it is made is told apart, and given back with it. */
#pragma once

#include "device/devices.h"

/* Is NVML to be asked, since its last answer is max_age_ns old? False where it cannot be asked. */
#define OVERHEAD_SELDOM_NS 100000000LL
#define OVERHEAD_OFTEN_NS 1000000LL
bool overhead_is_due(const struct device *device, int64_t max_age_ns);

/* If that is due, asks NVML what this process really holds, and counts the difference as overhead. True when NVML has
 * answered. */
bool overhead_correct(struct device *device, int64_t max_age_ns);

/* Asks NVML at once, after the driver has made something for which reserved_bytes are pending. If NVML answers, what
 * was made is counted as overhead and they are settled. True then. */
bool overhead_count_made(struct device *device, uint64_t reserved_bytes);

/* NVML is asked before anything more is allocated: memory that others use may have been given up here, and stay. */
void overhead_ask_again(struct device *device);
static inline bool overhead_was_asked(const struct device *device) {
  return __atomic_load_n(&device->corrected_ns, __ATOMIC_SEQ_CST) != 0;
}

/* The bytes that the other processes of a level held at NVML's last answer and do not count yet: what they loaded and
 * were not asked about since, and memory that they had imported before its maker gave it up. They may count it any
 * moment. */
static inline uint64_t overhead_elsewhere_bytes(const struct device *device, int level) {
  return __atomic_load_n(&device->uncounted_elsewhere_bytes[level], __ATOMIC_RELAXED);
}

/* Returns what this process holds besides its allocations, as NVML said last: a range while other threads allocate. */
struct ledger_range overhead_uncounted(const struct device *device);
bool overhead_is_blurred(const struct device *device);

/* A context has been made and counted, before which at most before_bytes were uncounted. */
void overhead_context_made(struct device *device, CUcontext context, uint64_t before_bytes);

/* A context is gone: its bytes are no longer told apart. The overhead is lowered at the next correction. */
void overhead_context_ended(const struct device *device, CUcontext context);
