#include "memory/ledger_totals.h"

#include "base/claim.h"
#include "base/compiler.h"
#include "memory/ledger_own.h"

/* As much as the device has: threads may all ask for it, and hosts may serve it. */
#define MOST_TIMES 1024

/* More than there can be is damage. It counts as nothing, since the slot's owner, which repairs it, may be idle for
 * ever. */
static uint64_t plausible(uint64_t bytes, uint64_t most_bytes) {
  return most_bytes > 0 && bytes > most_bytes ? 0 : bytes;
}

struct other {
  const struct ledger *ledger;
  int way, device, slot, slots_used;
  struct vgpu_device_usage usage;
  uint64_t counted_bytes; /* of that, if it can be */
  bool failed;            /* to read it */
};

static struct other before_the_first(const struct ledger *ledger, int way, int device) {
  struct usage_start start;
  bool failed = !ledger->slots->read(ledger->context, way, &start, sizeof start, 0);
  uint32_t slots_used = failed ? 0 : start.slots_used < VGPU_MAX_PROCESSES ? start.slots_used : VGPU_MAX_PROCESSES;
  return (struct other){
      .ledger = ledger, .way = way, .device = device, .slot = -1, .slots_used = (int)slots_used, .failed = failed};
}

static bool next(struct other *other) {
  const struct ledger *ledger = other->ledger;
  other->slot++;
  if (other->slot == __atomic_load_n(&ledger->own_slot, __ATOMIC_RELAXED))
    other->slot++;
  if (other->failed || other->slot >= other->slots_used)
    return false;
  size_t at = place_of_device(other->slot, number_of(ledger, other->device));
  other->failed = !ledger->slots->read(ledger->context, other->way, &other->usage, sizeof other->usage, at);
  uint64_t most_bytes = __atomic_load_n(&ledger->own->most_bytes[other->device], __ATOMIC_RELAXED);
  other->counted_bytes = plausible(other->usage.counted_bytes, most_bytes * MOST_TIMES);
  return !other->failed;
}

static bool is_live(const struct other *other) {
  return other->ledger->slots->is_live(other->ledger->context, other->slot);
}

/* Can this process name the other by its PID? A container cannot name those of another one that shares its limits. */
static bool has_name(const struct other *other, uint32_t *pid) {
  struct {
    uint32_t pid, pid_namespace;
  } name;
  const struct ledger *ledger = other->ledger;
  bool read = ledger->slots->read(ledger->context, other->way, &name, sizeof name,
                                  offsetof(struct vgpu_usage, processes[other->slot]));
  *pid = name.pid;
  return read && name.pid_namespace == ledger->own->usage.pid_namespace;
}

static bool is_process(const struct other *other, uint32_t pid) {
  uint32_t its_pid;
  return has_name(other, &its_pid) && its_pid == pid && is_live(other);
}

uint64_t ledger_held_by_others(const struct ledger *ledger, int way, int device, enum ledger_count count) {
  uint64_t bytes = 0;
  struct other other = before_the_first(ledger, way, device);
  while (next(&other))
    if (other.counted_bytes != 0 && (count == LEDGER_ALL_SLOTS || is_live(&other)))
      bytes = add_saturating(bytes, other.counted_bytes);
  if (other.failed)
    return UINT64_MAX;
  __atomic_store_n(&level_of(ledger)->others_bytes[device], bytes, __ATOMIC_RELAXED);
  __atomic_store_n(&level_of(ledger)->slots_used, other.slots_used, __ATOMIC_RELAXED);
  return bytes;
}

HOT uint64_t ledger_used_of_late(const struct ledger *ledger, int device) {
  claim_take(&ledger->own->claim);
  uint64_t held_bytes = held_by_us(ledger, device);
  claim_release(&ledger->own->claim);
  return add_saturating(held_bytes, others_of_late(ledger, device));
}

uint64_t ledger_used(const struct ledger *ledger, int device) {
  ledger_held_by_others(ledger, reach(ledger), device, LEDGER_LIVE_SLOTS);
  return ledger_used_of_late(ledger, device);
}

void ledger_visit(const struct ledger *ledger, int device, ledger_visitor visit, void *argument) {
  uint32_t pid;
  struct vgpu_device_usage own = ledger_own_usage(ledger, device);
  struct other other = before_the_first(ledger, reach(ledger), device);
  if (own.counted_bytes != 0)
    visit(argument, ledger->own->usage.pid, own.counted_bytes);
  while (next(&other))
    if (other.counted_bytes != 0 && has_name(&other, &pid) && is_live(&other))
      visit(argument, pid, other.counted_bytes);
}

bool ledger_held_elsewhere(const struct ledger *ledger, int device, uint32_t pid, uint64_t *held_bytes) {
  bool found = false;
  *held_bytes = 0;
  struct other other = before_the_first(ledger, reach(ledger), device);
  while (next(&other))
    if (is_process(&other, pid)) {
      *held_bytes = add_saturating(*held_bytes, other.counted_bytes);
      found = true;
    }
  return found;
}

bool ledger_has_process(const struct ledger *ledger, uint32_t pid) {
  struct other other = before_the_first(ledger, reach(ledger), 0);
  bool found = ledger->own->usage.pid == pid;
  while (!found && next(&other))
    found = is_process(&other, pid);
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
