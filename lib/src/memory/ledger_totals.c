#include "memory/ledger_totals.h"

#include "base/claim.h"
#include "base/compiler.h"
#include "memory/ledger_own.h"

/* Bounds a total by this many times the device's memory: all threads may ask for all of it at once, and hosts may
 * serve it. */
#define MOST_TIMES 1024

/* More than there can be is damage. It counts as nothing, since the slot's owner, which repairs it, may be idle for
 * ever. */
static uint64_t plausible(uint64_t bytes, uint64_t most_bytes) {
  return most_bytes > 0 && bytes > most_bytes ? 0 : bytes;
}

struct other {
  const struct ledger *ledger;
  int way, device, slot, slots_used;
  uint32_t pid, pid_namespace; /* by next_named() alone */
  struct vgpu_device_usage usage;
  uint64_t counted_bytes; /* the counted part of the usage, if that could be read */
  bool failed;            /* to read it */
};

static struct other before_the_first(const struct ledger *ledger, int way, int device) {
  struct usage_start start;
  bool failed = !ledger->slots->read(ledger->context, way, &start, sizeof start, 0);
  uint32_t slots_used = failed ? 0 : start.slots_used < VGPU_MAX_PROCESSES ? start.slots_used : VGPU_MAX_PROCESSES;
  return (struct other){
      .ledger = ledger, .way = way, .device = device, .slot = -1, .slots_used = (int)slots_used, .failed = failed};
}

static bool has_next(struct other *other) {
  other->slot++;
  if (other->slot == __atomic_load_n(&other->ledger->own_slot, __ATOMIC_RELAXED))
    other->slot++;
  return !other->failed && other->slot < other->slots_used;
}

static bool read_other(struct other *other, void *to, size_t size, size_t at) {
  const struct ledger *ledger = other->ledger;
  other->failed = !ledger->slots->read(ledger->context, other->way, to, size, at);
  return !other->failed;
}

static void count_usage(struct other *other) {
  uint64_t most_bytes = __atomic_load_n(&other->ledger->own->most_bytes[other->device], __ATOMIC_RELAXED);
  other->counted_bytes = plausible(other->usage.counted_bytes, most_bytes * MOST_TIMES);
}

static bool next(struct other *other) {
  if (!has_next(other))
    return false;
  size_t at = place_of_device(other->slot, number_of(other->ledger, other->device));
  bool read = read_other(other, &other->usage, sizeof other->usage, at);
  count_usage(other);
  return read;
}

/* The name is read together with the device's usage, and what lies between. */
static bool next_named(struct other *other) {
  struct vgpu_process_usage slot;
  if (!has_next(other))
    return false;
  int number = number_of(other->ledger, other->device);
  size_t size = offsetof(struct vgpu_process_usage, devices[number + 1]);
  bool read = read_other(other, &slot, size, offsetof(struct vgpu_usage, processes[other->slot]));
  other->pid = slot.pid;
  other->pid_namespace = slot.pid_namespace;
  other->usage = number < 0 ? (struct vgpu_device_usage){0} : slot.devices[number];
  count_usage(other);
  return read;
}

static bool is_live(const struct other *other) {
  return other->ledger->slots->is_live(other->ledger->context, other->slot);
}

/* Can this process name the other by its PID? A container cannot name those of another one that shares its limits. */
static bool has_name(const struct other *other) {
  return other->pid_namespace == other->ledger->own->usage.pid_namespace;
}

static void note_others(const struct other *last, uint64_t bytes) {
  struct ledger_level *level = level_of(last->ledger);
  if (last->failed)
    return;
  __atomic_store_n(&level->others_bytes[last->device], bytes, __ATOMIC_RELAXED);
  __atomic_store_n(&level->slots_used, last->slots_used, __ATOMIC_RELAXED);
}

uint64_t ledger_held_by_others(const struct ledger *ledger, int way, int device, enum ledger_count count) {
  uint64_t bytes = 0;
  struct other other = before_the_first(ledger, way, device);
  while (next(&other))
    if (other.counted_bytes != 0 && (count == LEDGER_ALL_SLOTS || is_live(&other)))
      bytes = add_saturating(bytes, other.counted_bytes);
  note_others(&other, bytes);
  return other.failed ? UINT64_MAX : bytes;
}

HOT uint64_t ledger_used_of_late(const struct ledger *ledger, int device) {
  claim_take(&ledger->own->claim);
  uint64_t held_bytes = held_by_us(ledger, device);
  claim_release(&ledger->own->claim);
  return add_saturating(held_bytes, others_of_late(ledger, device));
}

bool ledger_uses_more_than(const struct ledger *ledger, int device, uint64_t bytes) {
  ledger_held_by_others(ledger, reach(ledger), device, LEDGER_ALL_SLOTS);
  return ledger_used_of_late(ledger, device) > bytes && ledger_used(ledger, device) > bytes;
}

uint64_t ledger_used(const struct ledger *ledger, int device) {
  ledger_held_by_others(ledger, reach(ledger), device, LEDGER_LIVE_SLOTS);
  return ledger_used_of_late(ledger, device);
}

void ledger_visit(const struct ledger *ledger, int device, ledger_visitor visit, void *argument) {
  struct vgpu_device_usage own = ledger_own_usage(ledger, device);
  struct other other = before_the_first(ledger, reach(ledger), device);
  if (own.counted_bytes != 0)
    visit(argument, ledger->own->usage.pid, own.counted_bytes);
  while (next_named(&other))
    if (other.counted_bytes != 0 && has_name(&other) && is_live(&other))
      visit(argument, other.pid, other.counted_bytes);
}

uint64_t ledger_uncounted(const struct ledger *ledger, int device, ledger_witness held_bytes, const void *argument) {
  uint64_t sum = 0, others_bytes = 0;
  struct other other = before_the_first(ledger, reach(ledger), device);
  while (next_named(&other)) {
    uint64_t bytes = has_name(&other) ? subtract_saturating(held_bytes(argument, other.pid), other.counted_bytes) : 0;
    if (bytes > 0 && is_live(&other))
      sum = add_saturating(sum, bytes);
    others_bytes = add_saturating(others_bytes, other.counted_bytes);
  }
  note_others(&other, others_bytes);
  return sum;
}

bool ledger_has_process(const struct ledger *ledger, uint32_t pid) {
  struct other other = before_the_first(ledger, reach(ledger), 0);
  bool found = ledger->own->usage.pid == pid;
  while (!found && next_named(&other))
    found = other.pid == pid && has_name(&other) && is_live(&other);
  return found;
}

static void add_parts(struct ledger_parts *parts, const struct vgpu_device_usage *usage, uint64_t held_bytes,
                      uint64_t most_bytes, uint64_t *asked_for_bytes) {
  uint64_t overhead_bytes = plausible(usage->overhead_bytes, most_bytes);
  parts->overhead_bytes = add_saturating(parts->overhead_bytes, overhead_bytes);
  parts->context_bytes = add_saturating(parts->context_bytes, plausible(usage->context_bytes, most_bytes));
  parts->host_bytes = add_saturating(parts->host_bytes, plausible(usage->host_bytes, most_bytes * MOST_TIMES));
  *asked_for_bytes = add_saturating(*asked_for_bytes, subtract_saturating(held_bytes, overhead_bytes));
}

struct ledger_parts ledger_parts(const struct ledger *ledger, int device) {
  struct ledger_parts parts = {0};
  struct vgpu_device_usage own = ledger_own_usage(ledger, device);
  uint64_t most_bytes = __atomic_load_n(&ledger->own->most_bytes[device], __ATOMIC_RELAXED);
  add_parts(&parts, &own, own.counted_bytes, 0, &parts.own_bytes);
  struct other other = before_the_first(ledger, reach(ledger), device);
  while (next(&other))
    if ((other.counted_bytes != 0 || other.usage.host_bytes != 0) && is_live(&other))
      add_parts(&parts, &other.usage, other.counted_bytes, most_bytes, &parts.others_bytes);
  return parts;
}
