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

#define MOST_TIMES 1024 /* as much as the device has: threads may all ask for it, and hosts may serve it */

/* More than there can be is damage. It counts as nothing, since the slot's owner, which repairs it, may be idle for
 * ever. */
static uint64_t plausible(uint64_t bytes, uint64_t most_bytes) {
  return most_bytes > 0 && bytes > most_bytes ? 0 : bytes;
}

/* What is pending is read first, since it becomes one of the others before it goes: so it may be seen twice, but cannot
 * be missed. */
static uint64_t held(const struct vgpu_process_usage *process, int device, uint64_t most_bytes) {
  const struct vgpu_device_usage *usage = &process->devices[device];
  uint64_t bytes = plausible(__atomic_load_n(&usage->pending_bytes, __ATOMIC_SEQ_CST), most_bytes * MOST_TIMES);
  bytes = add_saturating(bytes, plausible(__atomic_load_n(&usage->allocated_bytes, __ATOMIC_SEQ_CST), most_bytes));
  return add_saturating(bytes, plausible(__atomic_load_n(&usage->overhead_bytes, __ATOMIC_SEQ_CST), most_bytes));
}

static uint64_t most_held(const struct ledger *ledger, int device) {
  return __atomic_load_n(&ledger->own->most_bytes[device], __ATOMIC_RELAXED);
}

static int slots_used(const struct ledger *ledger) {
  uint32_t used = __atomic_load_n(&ledger->usage->slots_used, __ATOMIC_SEQ_CST);
  return used < VGPU_MAX_PROCESSES ? (int)used : VGPU_MAX_PROCESSES;
}

/* Liveness costs a system call, so that the dead are told apart only where it matters. */
enum count { COUNT_ALL_SLOTS, COUNT_LIVE_SLOTS };

/* Reads what is settled first, so that it sees no less than what is pending. */
static uint64_t pending(const struct ledger_flow *flow) {
  uint64_t settled_bytes = __atomic_load_n(&flow->settled_bytes, __ATOMIC_SEQ_CST);
  return __atomic_load_n(&flow->begun_bytes, __ATOMIC_SEQ_CST) - settled_bytes;
}

static uint64_t held_by_us(const struct ledger *ledger, int device) {
  uint64_t pending_bytes = pending(&ledger->own->flows[device]);
  return add_saturating(pending_bytes, held(&ledger->own->usage, device, 0));
}

static HOT uint64_t sum(const struct ledger *ledger, int device, enum count count) {
  int own_slot = __atomic_load_n(&ledger->own_slot, __ATOMIC_RELAXED);
  uint64_t total = held_by_us(ledger, device), most_bytes = most_held(ledger, device);
  for (int slot = 0; slot < slots_used(ledger); slot++) {
    uint64_t bytes = slot == own_slot ? 0 : held(&ledger->usage->processes[slot], device, most_bytes);
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
  return process->pid_namespace == ledger->own->usage.pid_namespace;
}

void ledger_visit(const struct ledger *ledger, int device, ledger_visitor visit, void *argument) {
  uint64_t own_bytes = held_by_us(ledger, device);
  if (own_bytes != 0)
    visit(argument, ledger->own->usage.pid, own_bytes);
  for (int slot = 0; slot < slots_used(ledger); slot++) {
    const struct vgpu_process_usage *process = &ledger->usage->processes[slot];
    uint64_t bytes = held(process, device, most_held(ledger, device));
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
    *held_bytes = add_saturating(*held_bytes, held(process, device, most_held(ledger, device)));
    found = true;
  }
  return found;
}

bool ledger_has_process(const struct ledger *ledger, uint32_t pid) {
  if (ledger->own->usage.pid == pid)
    return true;
  for (int slot = 0; slot < slots_used(ledger); slot++) {
    const struct vgpu_process_usage *process = &ledger->usage->processes[slot];
    if (process->pid == pid && can_name(ledger, process) && is_other(ledger, slot))
      return true;
  }
  return false;
}

uint64_t ledger_used(const struct ledger *ledger, int device) {
  return sum(ledger, device, COUNT_LIVE_SLOTS);
}

HOT uint64_t ledger_used_at_most(const struct ledger *ledger, int device) {
  return sum(ledger, device, COUNT_ALL_SLOTS);
}

static void add_part(uint64_t *sum, const uint64_t *bytes, uint64_t most_bytes) {
  *sum = add_saturating(*sum, plausible(__atomic_load_n(bytes, __ATOMIC_SEQ_CST), most_bytes));
}

static void add_parts(struct ledger_parts *parts, const struct vgpu_device_usage *usage, uint64_t held_bytes,
                      uint64_t most_bytes, uint64_t *asked_for_bytes) {
  uint64_t overhead = 0;
  add_part(&overhead, &usage->overhead_bytes, most_bytes);
  add_part(&parts->context_bytes, &usage->context_bytes, most_bytes);
  add_part(&parts->host_bytes, &usage->host_bytes, most_bytes * MOST_TIMES);
  parts->overhead_bytes = add_saturating(parts->overhead_bytes, overhead);
  *asked_for_bytes = add_saturating(*asked_for_bytes, held_bytes > overhead ? held_bytes - overhead : 0);
}

struct ledger_parts ledger_parts(const struct ledger *ledger, int device) {
  struct ledger_parts parts = {0};
  add_parts(&parts, &ledger->own->usage.devices[device], held_by_us(ledger, device), 0, &parts.own_bytes);
  for (int slot = 0; slot < slots_used(ledger); slot++) {
    const struct vgpu_process_usage *process = &ledger->usage->processes[slot];
    uint64_t most_bytes = most_held(ledger, device), bytes = held(process, device, most_bytes);
    bool any = bytes != 0 || __atomic_load_n(&process->devices[device].host_bytes, __ATOMIC_SEQ_CST);
    if (any && is_other(ledger, slot))
      add_parts(&parts, &process->devices[device], bytes, most_bytes, &parts.others_bytes);
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
    &(ledger)->own->usage.devices[device].name,                                                                        \
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

/* The shown count is for the others; this process has its own in the flow. */
static inline uint64_t *shown_pending(const struct ledger *ledger, int device) {
  return ledger->own_slot < 0 ? NULL : &ledger->usage->processes[ledger->own_slot].devices[device].pending_bytes;
}

static void begin_pending(const struct ledger *ledger, int device, uint64_t bytes) {
  uint64_t *shown = shown_pending(ledger, device);
  __atomic_add_fetch(&ledger->own->flows[device].begun_bytes, bytes, __ATOMIC_SEQ_CST);
  if (shown != NULL)
    __atomic_add_fetch(shown, bytes, __ATOMIC_SEQ_CST);
}

static void end_pending(const struct ledger *ledger, int device, uint64_t bytes) {
  uint64_t *shown = shown_pending(ledger, device);
  if (shown != NULL)
    subtract_from(shown, bytes);
  __atomic_add_fetch(&ledger->own->flows[device].settled_bytes, bytes, __ATOMIC_SEQ_CST);
}

/* What does not fit is taken back at once, since meanwhile it is in the way of others. */
static HOT uint64_t try_to_reserve(const struct ledger *ledger, int device, uint64_t bytes, uint64_t limit_bytes) {
  begin_pending(ledger, device, bytes);
  uint64_t used_bytes = sum(ledger, device, COUNT_ALL_SLOTS);
  if (used_bytes <= limit_bytes)
    return used_bytes < LEDGER_FULL ? used_bytes : LEDGER_FULL - 1;
  end_pending(ledger, device, bytes);
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

static uint64_t difference(uint64_t a, uint64_t b) {
  return a > b ? a - b : 0;
}

/* Where more was taken than had been reserved, the rest has never been pending. */
HOT void ledger_settle(const struct ledger *ledger, int device, uint64_t reserved_bytes, uint64_t actual_bytes) {
  uint64_t unreserved_bytes = difference(actual_bytes, reserved_bytes);
  if (unreserved_bytes > 0)
    __atomic_add_fetch(&ledger->own->flows[device].begun_bytes, unreserved_bytes, __ATOMIC_SEQ_CST);
  if (actual_bytes > 0)
    add(COUNTER(ledger, device, allocated_bytes), actual_bytes);
  if (unreserved_bytes > 0)
    __atomic_add_fetch(&ledger->own->flows[device].settled_bytes, unreserved_bytes, __ATOMIC_SEQ_CST);
  if (reserved_bytes > 0)
    end_pending(ledger, device, reserved_bytes);
}

void ledger_add(const struct ledger *ledger, int device, uint64_t bytes) {
  ledger_settle(ledger, device, 0, bytes);
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

/* Reads what is pending before what is allocated, since it becomes that. */
struct ledger_snapshot ledger_snapshot(const struct ledger *ledger, int device) {
  const struct ledger_flow *flow = &ledger->own->flows[device];
  struct ledger_snapshot now = {.raises = __atomic_load_n(&flow->raises, __ATOMIC_SEQ_CST)};
  uint64_t settled_bytes = __atomic_load_n(&flow->settled_bytes, __ATOMIC_SEQ_CST);
  now.begun_bytes = __atomic_load_n(&flow->begun_bytes, __ATOMIC_SEQ_CST);
  now.pending_bytes = now.begun_bytes - settled_bytes;
  now.allocated_bytes = __atomic_load_n(&ledger->own->usage.devices[device].allocated_bytes, __ATOMIC_SEQ_CST);
  return now;
}

/* How much of what is counted as allocated the driver may have meant when it answered. Bytes that it had then and has
 * back since were allocated at the snapshot; bytes that it had not yet were pending then, or begun later. Reads what is
 * leaving before what is allocated: it is released before it has left. */
static struct ledger_range tracked(const struct ledger *ledger, int device, const struct ledger_snapshot *before,
                                   uint64_t answered_bytes) {
  const struct ledger_flow *flow = &ledger->own->flows[device];
  uint64_t leaving_bytes = __atomic_load_n(&flow->leaving_bytes, __ATOMIC_SEQ_CST);
  leaving_bytes =
      add_saturating(leaving_bytes, __atomic_load_n(ledger_leaving(ledger, LEDGER_SOME_DEVICE), __ATOMIC_SEQ_CST));
  uint64_t allocated = __atomic_load_n(&ledger->own->usage.devices[device].allocated_bytes, __ATOMIC_SEQ_CST);
  uint64_t begun_bytes = __atomic_load_n(&flow->begun_bytes, __ATOMIC_SEQ_CST) - before->begun_bytes;
  uint64_t came_bytes = difference(add_saturating(before->pending_bytes, begun_bytes), answered_bytes);
  return (struct ledger_range){
      .least_bytes = difference(allocated, add_saturating(came_bytes, leaving_bytes)),
      .most_bytes = add_saturating(before->allocated_bytes, came_bytes),
  };
}

static uint64_t between(uint64_t value, uint64_t least, uint64_t most) {
  return value > most ? most : value < least ? least : value;
}

/* An own count grows before the shown one does, and shrinks after it: so a shown one that is larger is damaged. What
 * changes meanwhile is left alone. */
static void repair(uint64_t *shown, uint64_t seen, uint64_t own) {
  if (seen > own)
    __atomic_compare_exchange_n(shown, &seen, own, false, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST);
}

static void repair_counter(struct counter counter) {
  if (counter.shown == NULL)
    return;
  uint64_t seen = __atomic_load_n(counter.shown, __ATOMIC_SEQ_CST);
  repair(counter.shown, seen, __atomic_load_n(counter.own, __ATOMIC_SEQ_CST));
}

/* While a slot is held the file is of this version, and nobody makes it anew. */
static void repair_header(struct vgpu_usage *usage, int own_slot) {
  if (__atomic_load_n(&usage->slots_used, __ATOMIC_SEQ_CST) <= (uint32_t)own_slot)
    __atomic_store_n(&usage->slots_used, VGPU_MAX_PROCESSES, __ATOMIC_SEQ_CST);
  if (__atomic_load_n(&usage->abi_version, __ATOMIC_RELAXED) != VGPU_ABI_VERSION)
    __atomic_store_n(&usage->abi_version, VGPU_ABI_VERSION, __ATOMIC_RELAXED);
  if (__atomic_load_n(&usage->magic, __ATOMIC_RELAXED) != VGPU_USAGE_MAGIC)
    __atomic_store_n(&usage->magic, VGPU_USAGE_MAGIC, __ATOMIC_RELEASE);
}

static void repair_name(uint32_t *shown, uint32_t own) {
  if (__atomic_load_n(shown, __ATOMIC_RELAXED) != own)
    __atomic_store_n(shown, own, __ATOMIC_RELAXED);
}

/* Whoever may write the file may have damaged what this process shows. */
static void repair_slot(const struct ledger *ledger, int device) {
  uint64_t *shown = shown_pending(ledger, device);
  if (shown == NULL)
    return;
  struct vgpu_process_usage *slot = &ledger->usage->processes[ledger->own_slot];
  repair_header(ledger->usage, ledger->own_slot);
  repair_name(&slot->pid, ledger->own->usage.pid);
  repair_name(&slot->pid_namespace, ledger->own->usage.pid_namespace);
  uint64_t seen = __atomic_load_n(shown, __ATOMIC_SEQ_CST);
  repair(shown, seen, pending(&ledger->own->flows[device]));
  repair_counter(COUNTER(ledger, device, allocated_bytes));
  repair_counter(COUNTER(ledger, device, managed_bytes));
  repair_counter(COUNTER(ledger, device, context_bytes));
  repair_counter(COUNTER(ledger, device, host_bytes));
}

/* Threads may do this at once: the last one shows what all have come to. */
static void show_overhead(struct counter overhead) {
  uint64_t bytes;
  do {
    bytes = __atomic_load_n(overhead.own, __ATOMIC_SEQ_CST);
    if (overhead.shown != NULL)
      __atomic_store_n(overhead.shown, bytes, __ATOMIC_SEQ_CST);
  } while (__atomic_load_n(overhead.own, __ATOMIC_SEQ_CST) != bytes);
}

struct ledger_range ledger_correct(const struct ledger *ledger, int device, const struct ledger_snapshot *before,
                                   uint64_t driver_bytes, enum ledger_cause cause, uint64_t answered_bytes) {
  struct ledger_flow *flow = &ledger->own->flows[device];
  const struct vgpu_device_usage *usage = &ledger->own->usage.devices[device];
  struct counter counter = COUNTER(ledger, device, overhead_bytes);
  struct ledger_range allocated = tracked(ledger, device, before, answered_bytes);
  uint64_t managed = __atomic_load_n(&usage->managed_bytes, __ATOMIC_SEQ_CST);
  uint64_t contexts = __atomic_load_n(&usage->context_bytes, __ATOMIC_SEQ_CST);
  struct ledger_range uncounted = {difference(driver_bytes, difference(allocated.most_bytes, managed)),
                                   difference(driver_bytes, difference(allocated.least_bytes, managed))};
  uint64_t surely = difference(driver_bytes, cause == LEDGER_MADE ? allocated.least_bytes : allocated.most_bytes);
  uint64_t least = between(contexts, surely, uncounted.most_bytes);
  uint64_t overhead = __atomic_load_n(counter.own, __ATOMIC_SEQ_CST), corrected;
  do {
    bool is_stale = __atomic_load_n(&flow->raises, __ATOMIC_SEQ_CST) != before->raises;
    uint64_t most = is_stale ? UINT64_MAX : uncounted.most_bytes;
    corrected = between(add_saturating(overhead, answered_bytes), least, most);
    if (corrected > overhead)
      __atomic_add_fetch(&flow->raises, 1, __ATOMIC_SEQ_CST);
  } while (!__atomic_compare_exchange_n(counter.own, &overhead, corrected, false, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST));
  show_overhead(counter);
  repair_slot(ledger, device);
  return uncounted;
}
