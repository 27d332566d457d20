/*
 * The holdings of this process, the place of its slot, and a level of the shares that it is in: for the files of the
 * ledger alone. Holdings are read and changed with the claim.
 */
#pragma once

#include "memory/ledger.h"

/* The file is other processes' to write, so that nothing in it may overflow a sum. */
static inline uint64_t add_saturating(uint64_t a, uint64_t b) {
  uint64_t sum;
  return __builtin_add_overflow(a, b, &sum) ? UINT64_MAX : sum;
}

static inline struct vgpu_device_usage *own_usage(const struct ledger *ledger, int device) {
  return &ledger->own->usage.devices[device];
}

static inline uint64_t pending(const struct ledger *ledger, int device) {
  return ledger->own->flows[device].begun_bytes - ledger->own->flows[device].settled_bytes;
}

static inline uint64_t held_by_us(const struct ledger *ledger, int device) {
  const struct vgpu_device_usage *usage = own_usage(ledger, device);
  return usage->allocated_bytes + usage->overhead_bytes + pending(ledger, device);
}

static inline size_t place_of_device(int slot, int device) {
  return offsetof(struct vgpu_usage, processes[slot].devices[device]);
}

static inline struct ledger_level *level_of(const struct ledger *ledger) {
  return &ledger->own->levels[ledger->level];
}

static inline int number_of(const struct ledger *ledger, int device) {
  return ledger->level == 0 ? device : __atomic_load_n(&level_of(ledger)->numbers[device], __ATOMIC_RELAXED);
}

static inline int reach(const struct ledger *ledger) {
  return ledger->slots->reach(ledger->context);
}

/* The total of the others when they were read last. */
static inline uint64_t others_of_late(const struct ledger *ledger, int device) {
  return __atomic_load_n(&level_of(ledger)->others_bytes[device], __ATOMIC_RELAXED);
}
