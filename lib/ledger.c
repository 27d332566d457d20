#include "ledger.h"

#define MIB (1024ULL * 1024ULL)
#define SMALL_REQUEST_BYTES MIB
#define BLOCK_BYTES (2 * MIB)
#define SMALL_STEP_BYTES 512ULL
#define LARGEST_REQUEST_BYTES (1ULL << 60) /* so that no count overflows */

static uint64_t round_up(uint64_t bytes, uint64_t step) {
  uint64_t rounded;
  return __builtin_add_overflow(bytes, step - 1, &rounded) ? bytes : rounded / step * step;
}

uint64_t ledger_driver_size(uint64_t requested_bytes) {
  return round_up(requested_bytes, requested_bytes <= SMALL_REQUEST_BYTES ? SMALL_STEP_BYTES : BLOCK_BYTES);
}

/* The file is other processes' to write, so that nothing in it may overflow a sum. */
static uint64_t add_saturating(uint64_t a, uint64_t b) {
  uint64_t sum;
  return __builtin_add_overflow(a, b, &sum) ? UINT64_MAX : sum;
}

static uint64_t held(const struct vgpu_process_usage *process, int device) {
  const struct vgpu_device_usage *usage = &process->devices[device];
  return add_saturating(__atomic_load_n(&usage->allocated_bytes, __ATOMIC_SEQ_CST),
                        __atomic_load_n(&usage->overhead_bytes, __ATOMIC_SEQ_CST));
}

static int slots_used(const struct ledger *ledger) {
  uint32_t used = __atomic_load_n(&ledger->usage->slots_used, __ATOMIC_SEQ_CST);
  return used < VGPU_MAX_PROCESSES ? (int)used : VGPU_MAX_PROCESSES;
}

/* Liveness costs a system call, so that the dead are told apart only where it matters. */
enum count { COUNT_ALL_SLOTS, COUNT_LIVE_SLOTS };

static uint64_t sum(const struct ledger *ledger, int device, enum count count) {
  uint64_t total = held(ledger->own, device);
  int own_slot = __atomic_load_n(&ledger->own_slot, __ATOMIC_RELAXED);
  for (int slot = 0; slot < slots_used(ledger); slot++) {
    uint64_t bytes = slot == own_slot ? 0 : held(&ledger->usage->processes[slot], device);
    if (bytes != 0 && (count == COUNT_ALL_SLOTS || ledger->slot_is_live(ledger->context, slot)))
      total = add_saturating(total, bytes);
  }
  return total;
}

uint64_t ledger_used(const struct ledger *ledger, int device) {
  return sum(ledger, device, COUNT_LIVE_SLOTS);
}

uint64_t ledger_used_at_most(const struct ledger *ledger, int device) {
  return sum(ledger, device, COUNT_ALL_SLOTS);
}

bool ledger_reserve(const struct ledger *ledger, int device, uint64_t bytes, uint64_t limit_bytes) {
  if (bytes > limit_bytes || bytes > LARGEST_REQUEST_BYTES)
    return false;
  ledger_add(ledger, device, bytes);
  if (ledger_used_at_most(ledger, device) <= limit_bytes || ledger_used(ledger, device) <= limit_bytes)
    return true;
  ledger_release(ledger, device, bytes);
  return false;
}

/* One of the counters of a device: the own one, and its copy in the slot. */
struct counter {
  uint64_t *own;
  uint64_t *shown; /* NULL without a slot */
};

#define COUNTER(ledger, device, name)                                                                                  \
  (struct counter) {                                                                                                   \
    &(ledger)->own->devices[device].name,                                                                              \
        (ledger)->own_slot < 0 ? NULL : &(ledger)->usage->processes[(ledger)->own_slot].devices[device].name           \
  }

static void add(struct counter counter, uint64_t bytes) {
  __atomic_add_fetch(counter.own, bytes, __ATOMIC_SEQ_CST);
  if (counter.shown != NULL)
    __atomic_add_fetch(counter.shown, bytes, __ATOMIC_SEQ_CST);
}

/* Never below zero, whatever has been written to the file. */
static void subtract_from(uint64_t *count, uint64_t bytes) {
  uint64_t before = __atomic_load_n(count, __ATOMIC_SEQ_CST);
  while (!__atomic_compare_exchange_n(count, &before, before > bytes ? before - bytes : 0, false, __ATOMIC_SEQ_CST,
                                      __ATOMIC_SEQ_CST))
    continue;
}

static void subtract(struct counter counter, uint64_t bytes) {
  if (counter.shown != NULL)
    subtract_from(counter.shown, bytes);
  subtract_from(counter.own, bytes);
}

void ledger_add(const struct ledger *ledger, int device, uint64_t bytes) {
  add(COUNTER(ledger, device, allocated_bytes), bytes);
}

void ledger_release(const struct ledger *ledger, int device, uint64_t bytes) {
  subtract(COUNTER(ledger, device, allocated_bytes), bytes);
}

void ledger_add_managed(const struct ledger *ledger, int device, uint64_t bytes) {
  add(COUNTER(ledger, device, managed_bytes), bytes);
}

void ledger_release_managed(const struct ledger *ledger, int device, uint64_t bytes) {
  subtract(COUNTER(ledger, device, managed_bytes), bytes);
}

void ledger_add_context(const struct ledger *ledger, int device, uint64_t bytes) {
  add(COUNTER(ledger, device, context_bytes), bytes);
}

void ledger_release_context(const struct ledger *ledger, int device, uint64_t bytes) {
  subtract(COUNTER(ledger, device, context_bytes), bytes);
}

static uint64_t difference(uint64_t a, uint64_t b) {
  return a > b ? a - b : 0;
}

uint64_t ledger_correct(const struct ledger *ledger, int device, uint64_t driver_bytes, uint64_t pending_bytes) {
  const struct vgpu_device_usage *usage = &ledger->own->devices[device];
  uint64_t allocated = __atomic_load_n(&usage->allocated_bytes, __ATOMIC_SEQ_CST);
  uint64_t managed = __atomic_load_n(&usage->managed_bytes, __ATOMIC_SEQ_CST);
  uint64_t contexts = __atomic_load_n(&usage->context_bytes, __ATOMIC_SEQ_CST);
  uint64_t least = difference(driver_bytes, allocated);
  uint64_t most = difference(driver_bytes, difference(difference(allocated, managed), pending_bytes));
  least = contexts < least ? least : contexts > most ? most : contexts;
  uint64_t overhead = __atomic_load_n(&usage->overhead_bytes, __ATOMIC_SEQ_CST);
  overhead = overhead < least ? least : overhead > most ? most : overhead;
  struct counter counter = COUNTER(ledger, device, overhead_bytes);
  __atomic_store_n(counter.own, overhead, __ATOMIC_SEQ_CST);
  if (counter.shown != NULL)
    __atomic_store_n(counter.shown, overhead, __ATOMIC_SEQ_CST);
  return most;
}
