#include "ledger.h"

#define MIB (1024ULL * 1024ULL)
#define SMALL_REQUEST_BYTES MIB
#define BLOCK_BYTES (2 * MIB)
#define SMALL_STEP_BYTES 512ULL

static uint64_t round_up(uint64_t bytes, uint64_t step) {
  uint64_t rounded;
  return __builtin_add_overflow(bytes, step - 1, &rounded) ? bytes : rounded / step * step;
}

uint64_t ledger_driver_size(uint64_t requested_bytes) {
  return round_up(requested_bytes, requested_bytes <= SMALL_REQUEST_BYTES ? SMALL_STEP_BYTES : BLOCK_BYTES);
}

static struct vgpu_device_usage *own(const struct ledger *ledger, int device) {
  return &ledger->usage->processes[ledger->own_slot].devices[device];
}

/* The file is other processes' to write, so that nothing in it may overflow a sum. */
static uint64_t add_saturating(uint64_t a, uint64_t b) {
  uint64_t sum;
  return __builtin_add_overflow(a, b, &sum) ? UINT64_MAX : sum;
}

static uint64_t held_by(const struct ledger *ledger, int slot, int device) {
  const struct vgpu_device_usage *usage = &ledger->usage->processes[slot].devices[device];
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
  uint64_t total = 0;
  for (int slot = 0; slot < slots_used(ledger); slot++) {
    uint64_t held = held_by(ledger, slot, device);
    if (held != 0 && (count == COUNT_ALL_SLOTS || ledger->slot_is_live(ledger->context, slot)))
      total = add_saturating(total, held);
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
  if (bytes > limit_bytes) /* also keeps the own count from overflowing */
    return false;
  ledger_add(ledger, device, bytes);
  if (ledger_used_at_most(ledger, device) <= limit_bytes || ledger_used(ledger, device) <= limit_bytes)
    return true;
  ledger_release(ledger, device, bytes);
  return false;
}

void ledger_add(const struct ledger *ledger, int device, uint64_t bytes) {
  __atomic_add_fetch(&own(ledger, device)->allocated_bytes, bytes, __ATOMIC_SEQ_CST);
}

/* Never below zero, whatever has been written to the file. */
static void subtract(uint64_t *counter, uint64_t bytes) {
  uint64_t before = __atomic_load_n(counter, __ATOMIC_SEQ_CST);
  while (!__atomic_compare_exchange_n(counter, &before, before > bytes ? before - bytes : 0, false, __ATOMIC_SEQ_CST,
                                      __ATOMIC_SEQ_CST))
    continue;
}

void ledger_release(const struct ledger *ledger, int device, uint64_t bytes) {
  subtract(&own(ledger, device)->allocated_bytes, bytes);
}

void ledger_add_managed(const struct ledger *ledger, int device, uint64_t bytes) {
  __atomic_add_fetch(&own(ledger, device)->managed_bytes, bytes, __ATOMIC_SEQ_CST);
}

void ledger_release_managed(const struct ledger *ledger, int device, uint64_t bytes) {
  subtract(&own(ledger, device)->managed_bytes, bytes);
}

static uint64_t difference(uint64_t a, uint64_t b) {
  return a > b ? a - b : 0;
}

void ledger_correct(const struct ledger *ledger, int device, uint64_t driver_bytes, uint64_t pending_bytes) {
  struct vgpu_device_usage *usage = own(ledger, device);
  uint64_t allocated = __atomic_load_n(&usage->allocated_bytes, __ATOMIC_SEQ_CST);
  uint64_t managed = __atomic_load_n(&usage->managed_bytes, __ATOMIC_SEQ_CST);
  uint64_t least = difference(driver_bytes, allocated);
  uint64_t most = difference(driver_bytes, difference(difference(allocated, managed), pending_bytes));
  uint64_t overhead = __atomic_load_n(&usage->overhead_bytes, __ATOMIC_SEQ_CST);
  overhead = overhead < least ? least : overhead > most ? most : overhead;
  __atomic_store_n(&usage->overhead_bytes, overhead, __ATOMIC_SEQ_CST);
}
