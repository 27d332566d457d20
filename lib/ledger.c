#include "ledger.h"

#include "clock.h"
#include "hot.h"

#define LARGEST_REQUEST_BYTES (1ULL << 60) /* so that no count overflows */
#define LOOKS_BEFORE_REFUSAL 2
#define PAUSE_NS 20000

uint64_t ledger_driver_size(uint64_t requested_bytes) {
  uint64_t rounded;
  bool overflows = __builtin_add_overflow(requested_bytes, LEDGER_BLOCK_BYTES - 1, &rounded);
  return overflows ? requested_bytes : rounded / LEDGER_BLOCK_BYTES * LEDGER_BLOCK_BYTES;
}

/* The file is other processes' to write, so that nothing in it may overflow a sum. */
static uint64_t add_saturating(uint64_t a, uint64_t b) {
  uint64_t sum;
  return __builtin_add_overflow(a, b, &sum) ? UINT64_MAX : sum;
}

/* What is pending is read first, since it becomes one of the others before it goes: so it may be seen twice, but cannot
 * be missed. */
static uint64_t held(const struct vgpu_process_usage *process, int device) {
  const struct vgpu_device_usage *usage = &process->devices[device];
  uint64_t bytes = __atomic_load_n(&usage->pending_bytes, __ATOMIC_SEQ_CST);
  bytes = add_saturating(bytes, __atomic_load_n(&usage->allocated_bytes, __ATOMIC_SEQ_CST));
  return add_saturating(bytes, __atomic_load_n(&usage->overhead_bytes, __ATOMIC_SEQ_CST));
}

static int slots_used(const struct ledger *ledger) {
  uint32_t used = __atomic_load_n(&ledger->usage->slots_used, __ATOMIC_SEQ_CST);
  return used < VGPU_MAX_PROCESSES ? (int)used : VGPU_MAX_PROCESSES;
}

/* Liveness costs a system call, so that the dead are told apart only where it matters. */
enum count { COUNT_ALL_SLOTS, COUNT_LIVE_SLOTS };

/* What is pending has one count, the shown one; that may have been overwritten, but the caller's request is pending. */
static uint64_t held_by_us(const struct ledger *ledger, int own_slot, int device, uint64_t requested_bytes) {
  uint64_t bytes = 0;
  if (own_slot >= 0)
    bytes = __atomic_load_n(&ledger->usage->processes[own_slot].devices[device].pending_bytes, __ATOMIC_SEQ_CST);
  if (own_slot >= 0 && bytes < requested_bytes)
    bytes = requested_bytes;
  return add_saturating(bytes, held(ledger->own, device));
}

static HOT uint64_t sum(const struct ledger *ledger, int device, enum count count, uint64_t requested_bytes) {
  int own_slot = __atomic_load_n(&ledger->own_slot, __ATOMIC_RELAXED);
  uint64_t total = held_by_us(ledger, own_slot, device, requested_bytes);
  for (int slot = 0; slot < slots_used(ledger); slot++) {
    uint64_t bytes = slot == own_slot ? 0 : held(&ledger->usage->processes[slot], device);
    if (bytes != 0 && (count == COUNT_ALL_SLOTS || ledger->slot_is_live(ledger->context, slot)))
      total = add_saturating(total, bytes);
  }
  return total;
}

static bool is_other(const struct ledger *ledger, int slot) {
  return slot != __atomic_load_n(&ledger->own_slot, __ATOMIC_RELAXED) && ledger->slot_is_live(ledger->context, slot);
}

/* Can this process name the other by its PID? A container cannot name those of another one that shares its limits. */
static bool can_name(const struct ledger *ledger, const struct vgpu_process_usage *process) {
  return process->pid_namespace == ledger->own->pid_namespace;
}

void ledger_visit(const struct ledger *ledger, int device, ledger_visitor visit, void *argument) {
  uint64_t own_bytes = held_by_us(ledger, __atomic_load_n(&ledger->own_slot, __ATOMIC_RELAXED), device, 0);
  if (own_bytes != 0)
    visit(argument, ledger->own->pid, own_bytes);
  for (int slot = 0; slot < slots_used(ledger); slot++) {
    const struct vgpu_process_usage *process = &ledger->usage->processes[slot];
    uint64_t bytes = held(process, device);
    if (bytes != 0 && can_name(ledger, process) && is_other(ledger, slot))
      visit(argument, process->pid, bytes);
  }
}

bool ledger_held_elsewhere(const struct ledger *ledger, int device, uint32_t pid, uint64_t *held_bytes) {
  bool found = false;
  *held_bytes = 0;
  for (int slot = 0; slot < slots_used(ledger); slot++) {
    const struct vgpu_process_usage *process = &ledger->usage->processes[slot];
    if (process->pid != pid || !can_name(ledger, process) || !is_other(ledger, slot))
      continue;
    *held_bytes = add_saturating(*held_bytes, held(process, device));
    found = true;
  }
  return found;
}

bool ledger_has_process(const struct ledger *ledger, uint32_t pid) {
  if (ledger->own->pid == pid)
    return true;
  for (int slot = 0; slot < slots_used(ledger); slot++) {
    const struct vgpu_process_usage *process = &ledger->usage->processes[slot];
    if (process->pid == pid && can_name(ledger, process) && is_other(ledger, slot))
      return true;
  }
  return false;
}

uint64_t ledger_used(const struct ledger *ledger, int device) {
  return sum(ledger, device, COUNT_LIVE_SLOTS, 0);
}

HOT uint64_t ledger_used_at_most(const struct ledger *ledger, int device) {
  return sum(ledger, device, COUNT_ALL_SLOTS, 0);
}

static void add_parts(struct ledger_parts *parts, const struct vgpu_device_usage *usage, uint64_t held_bytes,
                      uint64_t *asked_for_bytes) {
  uint64_t overhead = __atomic_load_n(&usage->overhead_bytes, __ATOMIC_SEQ_CST);
  parts->overhead_bytes = add_saturating(parts->overhead_bytes, overhead);
  parts->context_bytes = add_saturating(parts->context_bytes, __atomic_load_n(&usage->context_bytes, __ATOMIC_SEQ_CST));
  parts->host_bytes = add_saturating(parts->host_bytes, __atomic_load_n(&usage->host_bytes, __ATOMIC_SEQ_CST));
  *asked_for_bytes = add_saturating(*asked_for_bytes, held_bytes > overhead ? held_bytes - overhead : 0);
}

struct ledger_parts ledger_parts(const struct ledger *ledger, int device) {
  struct ledger_parts parts = {0};
  int own_slot = __atomic_load_n(&ledger->own_slot, __ATOMIC_RELAXED);
  add_parts(&parts, &ledger->own->devices[device], held_by_us(ledger, own_slot, device, 0), &parts.own_bytes);
  for (int slot = 0; slot < slots_used(ledger); slot++) {
    const struct vgpu_process_usage *process = &ledger->usage->processes[slot];
    bool any = held(process, device) != 0 || __atomic_load_n(&process->devices[device].host_bytes, __ATOMIC_SEQ_CST);
    if (any && is_other(ledger, slot))
      add_parts(&parts, &process->devices[device], held(process, device), &parts.others_bytes);
  }
  return parts;
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
static HOT void subtract_from(uint64_t *count, uint64_t bytes) {
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

/* What is pending matters to all processes alike, and to this one not for long: it has one count, the shown one. */
static uint64_t *pending(const struct ledger *ledger, int device) {
  struct counter counter = COUNTER(ledger, device, pending_bytes);
  return counter.shown != NULL ? counter.shown : counter.own;
}

/* What does not fit is taken back at once, since meanwhile it is in the way of others. */
static HOT uint64_t try_to_reserve(const struct ledger *ledger, int device, uint64_t bytes, uint64_t limit_bytes) {
  __atomic_add_fetch(pending(ledger, device), bytes, __ATOMIC_SEQ_CST);
  uint64_t used_bytes = sum(ledger, device, COUNT_ALL_SLOTS, bytes);
  if (used_bytes <= limit_bytes)
    return used_bytes < LEDGER_FULL ? used_bytes : LEDGER_FULL - 1;
  subtract_from(pending(ledger, device), bytes);
  return LEDGER_FULL;
}

/* What is in the way may be the dead's, or another's request that is about to be taken back. */
HOT uint64_t ledger_reserve(const struct ledger *ledger, int device, uint64_t bytes, uint64_t limit_bytes) {
  if (bytes > limit_bytes || bytes > LARGEST_REQUEST_BYTES)
    return LEDGER_FULL;
  uint64_t used_bytes = try_to_reserve(ledger, device, bytes, limit_bytes);
  for (int looks = 0; used_bytes == LEDGER_FULL && looks < LOOKS_BEFORE_REFUSAL; looks++) {
    if (looks > 0)
      clock_sleep_ns(PAUSE_NS);
    if (ledger_used(ledger, device) <= limit_bytes - bytes)
      used_bytes = try_to_reserve(ledger, device, bytes, limit_bytes);
  }
  return used_bytes;
}

HOT void ledger_settle(const struct ledger *ledger, int device, uint64_t reserved_bytes, uint64_t actual_bytes) {
  ledger_add(ledger, device, actual_bytes);
  subtract_from(pending(ledger, device), reserved_bytes);
}

void ledger_add(const struct ledger *ledger, int device, uint64_t bytes) {
  if (bytes > 0)
    add(COUNTER(ledger, device, allocated_bytes), bytes);
}

void ledger_release(const struct ledger *ledger, int device, uint64_t bytes) {
  if (bytes > 0)
    subtract(COUNTER(ledger, device, allocated_bytes), bytes);
}

void ledger_add_managed(const struct ledger *ledger, int device, uint64_t bytes) {
  add(COUNTER(ledger, device, managed_bytes), bytes);
}

void ledger_release_managed(const struct ledger *ledger, int device, uint64_t bytes) {
  subtract(COUNTER(ledger, device, managed_bytes), bytes);
}

bool ledger_reserve_host(const struct ledger *ledger, int device, uint64_t bytes, uint64_t virtual_limit_bytes) {
  if (bytes > virtual_limit_bytes || bytes > LARGEST_REQUEST_BYTES)
    return false;
  add(COUNTER(ledger, device, host_bytes), bytes);
  if (add_saturating(ledger_used(ledger, device), ledger_parts(ledger, device).host_bytes) <= virtual_limit_bytes)
    return true;
  ledger_release_host(ledger, device, bytes);
  return false;
}

void ledger_release_host(const struct ledger *ledger, int device, uint64_t bytes) {
  subtract(COUNTER(ledger, device, host_bytes), bytes);
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

uint64_t ledger_correct(const struct ledger *ledger, int device, uint64_t driver_bytes, uint64_t answered_bytes) {
  const struct vgpu_device_usage *usage = &ledger->own->devices[device];
  uint64_t allocated = __atomic_load_n(&usage->allocated_bytes, __ATOMIC_SEQ_CST);
  uint64_t managed = __atomic_load_n(&usage->managed_bytes, __ATOMIC_SEQ_CST);
  uint64_t contexts = __atomic_load_n(&usage->context_bytes, __ATOMIC_SEQ_CST);
  uint64_t under_way = difference(__atomic_load_n(pending(ledger, device), __ATOMIC_SEQ_CST), answered_bytes);
  uint64_t least = difference(driver_bytes, add_saturating(allocated, under_way));
  uint64_t most = difference(driver_bytes, difference(allocated, managed));
  least = contexts < least ? least : contexts > most ? most : contexts;
  uint64_t overhead = add_saturating(__atomic_load_n(&usage->overhead_bytes, __ATOMIC_SEQ_CST), answered_bytes);
  overhead = overhead < least ? least : overhead > most ? most : overhead;
  struct counter counter = COUNTER(ledger, device, overhead_bytes);
  __atomic_store_n(counter.own, overhead, __ATOMIC_SEQ_CST);
  if (counter.shown != NULL)
    __atomic_store_n(counter.shown, overhead, __ATOMIC_SEQ_CST);
  return most;
}
