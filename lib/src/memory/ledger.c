#include "memory/ledger.h"

#include "base/claim.h"
#include "base/clock.h"
#include "base/compiler.h"
#include "memory/ledger_own.h"
#include "memory/ledger_totals.h"

#include <string.h>

#define LARGEST_REQUEST_BYTES (1ULL << 60) /* so that no count overflows */
#define LOOKS_BEFORE_REFUSAL 2
#define PAUSE_NS 20000

/* The file may lag behind by this much: not every change is worth a system call. A small request reserves a block
 * before it is known to share one, and what is shown ends with a block. A request to a pool reserves what the pool may
 * grow by (cuda/pools.c), which it seldom does: that stays shown for the next one. */
#define MOST_UNSHOWN_BYTES (2 * LEDGER_BLOCK_BYTES)
#define MOST_KEPT_BYTES ((32ULL << 20) + MOST_UNSHOWN_BYTES)
#define MOST_KEPT_PART 64 /* the part of a level's limit that all its processes together may keep */

uint64_t ledger_driver_size(uint64_t requested_bytes) {
  uint64_t rounded;
  bool overflows = __builtin_add_overflow(requested_bytes, LEDGER_BLOCK_BYTES - 1, &rounded);
  return overflows ? requested_bytes : rounded / LEDGER_BLOCK_BYTES * LEDGER_BLOCK_BYTES;
}

static uint64_t between(uint64_t value, uint64_t least, uint64_t most) {
  return value > most ? most : value < least ? least : value;
}

/* ---- what is shown ----------------------------------------------------------------------------------------------- */

static struct vgpu_device_usage *shown_usage(const struct ledger *level, int device) {
  return &level_of(level)->shown[device];
}

/* The ways to the levels' files, as far as they have been asked for. */
struct ways {
  int to[VGPU_MAX_LEVELS];
  bool known[VGPU_MAX_LEVELS];
};

static int way_to(const struct ledger *level, struct ways *ways) {
  if (!ways->known[level->level])
    ways->to[level->level] = reach(level);
  ways->known[level->level] = true;
  return ways->to[level->level];
}

static bool write_usage(const struct ledger *level, struct ways *ways, int device,
                        const struct vgpu_device_usage *usage) {
  size_t at = place_of_device(level->own_slot, number_of(level, device));
  return level->own_slot < 0 || level->slots->write(level->context, way_to(level, ways), usage, sizeof *usage, at);
}

/* Tells whether a level must be shown a change: any growth, and above the process's own level a decrease by more than
 * is kept there. */
static bool must_show(const struct ledger *level, int device, const struct vgpu_device_usage *usage) {
  const uint64_t *now = (const uint64_t *)usage, *then = (const uint64_t *)shown_usage(level, device);
  uint64_t kept_bytes = level->level == 0 ? 0 : level_of(level)->kept_bytes[device];
  for (size_t i = 0; i < sizeof *usage / sizeof *now; i++)
    if (now[i] > then[i] || then[i] - now[i] > kept_bytes)
      return true;
  return false;
}

static bool must_show_anywhere(const struct ledger *ledger, int device, const struct vgpu_device_usage *usage) {
  while (ledger != NULL && !must_show(ledger, device, usage))
    ledger = ledger->above;
  return ledger != NULL;
}

static void note_shown(const struct ledger *level, int device, const struct vgpu_device_usage *usage) {
  uint64_t *granted_bytes = &level_of(level)->granted_bytes[device];
  *shown_usage(level, device) = *usage;
  if (*granted_bytes > usage->counted_bytes)
    *granted_bytes = usage->counted_bytes;
}

/* Shows the use at all levels or, where one cannot be written, at none. Pending bytes are shown as allocated: most of
 * them will be, and then need not be shown again. */
static bool show(const struct ledger *ledger, struct ways *ways, int device, uint64_t counted_bytes) {
  struct vgpu_device_usage usage = *own_usage(ledger, device);
  usage.allocated_bytes += pending(ledger, device);
  usage.counted_bytes = counted_bytes;
  if (!must_show_anywhere(ledger, device, &usage))
    return true;
  bool written = true;
  for (const struct ledger *level = ledger; level != NULL && written; level = level->above)
    written = !must_show(level, device, &usage) || write_usage(level, ways, device, &usage);
  for (const struct ledger *level = ledger; level != NULL; level = level->above)
    if (written && must_show(level, device, &usage))
      note_shown(level, device, &usage);
    else if (!written)
      write_usage(level, ways, device, shown_usage(level, device));
  return written;
}

static COLD bool show_now(const struct ledger *ledger, int device, uint64_t counted_bytes) {
  struct ways ways = {.known = {false}};
  return show(ledger, &ways, device, counted_bytes);
}

static HOT uint64_t most_unshown(const struct ledger *ledger, int device) {
  return between(level_of(ledger)->kept_bytes[device], 0, MOST_UNSHOWN_BYTES);
}

static bool lags(uint64_t shown_bytes, uint64_t bytes, uint64_t pending_bytes) {
  return subtract_saturating(shown_bytes, bytes + pending_bytes) > MOST_UNSHOWN_BYTES ||
         subtract_saturating(bytes, shown_bytes) > MOST_UNSHOWN_BYTES;
}

static HOT void show_what_lags(const struct ledger *ledger, int device, uint64_t most_kept_bytes) {
  const struct vgpu_device_usage *own = own_usage(ledger, device), *shown = shown_usage(ledger, device);
  uint64_t held_bytes = held_by_us(ledger, device);
  bool counts_all = held_bytes <= shown->counted_bytes && shown->counted_bytes - held_bytes <= most_kept_bytes;
  if (!counts_all || lags(shown->allocated_bytes, own->allocated_bytes, pending(ledger, device)) ||
      lags(shown->overhead_bytes, own->overhead_bytes, 0) || lags(shown->managed_bytes, own->managed_bytes, 0) ||
      lags(shown->context_bytes, own->context_bytes, 0) || lags(shown->host_bytes, own->host_bytes, 0))
    show_now(ledger, device, counts_all ? shown->counted_bytes : held_bytes);
}

struct vgpu_device_usage ledger_own_usage(const struct ledger *ledger, int device) {
  claim_take(&ledger->own->claim);
  struct vgpu_device_usage usage = *own_usage(ledger, device);
  usage.counted_bytes = held_by_us(ledger, device);
  claim_release(&ledger->own->claim);
  return usage;
}

void ledger_note_limiter(const struct ledger *ledger, int device, uint32_t limiter) {
  claim_take(&ledger->own->claim);
  own_usage(ledger, device)->limiter = limiter;
  show_now(ledger, device, held_by_us(ledger, device));
  claim_release(&ledger->own->claim);
}

/* ---- reserving --------------------------------------------------------------------------------------------------- */

static const struct ledger_room no_room = {.used_bytes = LEDGER_FULL};

/* Returns the room that is left, counting what is pending and what the others held when they were last read. */
static HOT struct ledger_room room_of(const struct ledger *ledger, int device, const uint64_t limits_bytes[]) {
  uint64_t held_bytes = held_by_us(ledger, device);
  struct ledger_room room = {.left_bytes = UINT64_MAX};
  for (; ledger != NULL; ledger = ledger->above) {
    uint64_t used_bytes = add_saturating(held_bytes, others_of_late(ledger, device));
    uint64_t limit_bytes = limits_bytes[ledger->level];
    if (used_bytes > limit_bytes)
      return no_room;
    if (ledger->level == 0)
      room.used_bytes = used_bytes < LEDGER_FULL ? used_bytes : LEDGER_FULL - 1;
    if (limit_bytes - used_bytes < room.left_bytes)
      room.left_bytes = limit_bytes - used_bytes;
  }
  return room;
}

/* Returns how much a process may keep of a level, or not show there yet: these bytes are in the way of the others. */
static uint64_t most_kept(const struct ledger *level, uint64_t limit_bytes) {
  uint32_t processes = __atomic_load_n(&level_of(level)->slots_used, __ATOMIC_RELAXED);
  uint64_t bytes = limit_bytes / MOST_KEPT_PART / (processes > 0 ? processes : 1);
  return between(bytes, 0, MOST_KEPT_BYTES);
}

/* Looks whether the level has room for what is shown, unless it was granted before and still is. */
static bool look_at(const struct ledger *level, struct ways *ways, int device, uint64_t shown_bytes,
                    uint64_t limit_bytes) {
  struct ledger_level *known = level_of(level);
  if (shown_bytes <= known->granted_bytes[device] &&
      add_saturating(shown_bytes, others_of_late(level, device)) <= limit_bytes)
    return true;
  if (ledger_held_by_others(level, way_to(level, ways), device, LEDGER_ALL_SLOTS) == UINT64_MAX)
    return false;
  known->kept_bytes[device] = most_kept(level, limit_bytes);
  return true;
}

static void note_granted(const struct ledger *level, int device, uint64_t bytes) {
  uint64_t *granted_bytes = &level_of(level)->granted_bytes[device];
  if (*granted_bytes < bytes)
    *granted_bytes = bytes;
}

/* Shows the total up to the end of its block, where there is room for that. */
static COLD struct ledger_room show_more(const struct ledger *ledger, int device, const uint64_t limits_bytes[]) {
  uint64_t held_bytes = held_by_us(ledger, device), rounded_bytes = ledger_driver_size(held_bytes);
  struct ways ways = {.known = {false}};
  bool shown = show(ledger, &ways, device, rounded_bytes);
  for (const struct ledger *level = ledger; level != NULL; level = level->above) {
    uint64_t limit_bytes = limits_bytes[level->level];
    bool known = shown && look_at(level, &ways, device, rounded_bytes, limit_bytes);
    if (!known && limit_bytes != VGPU_NO_MEMORY_LIMIT)
      return no_room;
  }
  struct ledger_room room = room_of(ledger, device, limits_bytes);
  if (room.used_bytes == LEDGER_FULL)
    return no_room;
  if (room.left_bytes < rounded_bytes - held_bytes)
    show(ledger, &ways, device, held_bytes);
  for (const struct ledger *level = ledger; level != NULL; level = level->above)
    note_granted(level, device, shown_usage(ledger, device)->counted_bytes);
  return room;
}

/* Compares a total that is shown already with the others' alone. A total without room beside theirs, as they were
 * lately, is not shown: it would be in their way. */
static HOT struct ledger_room fit(const struct ledger *ledger, int device, const uint64_t limits_bytes[]) {
  struct ledger_room room = room_of(ledger, device, limits_bytes);
  if (room.used_bytes == LEDGER_FULL || held_by_us(ledger, device) <= level_of(ledger)->granted_bytes[device])
    return room;
  return show_more(ledger, device, limits_bytes);
}

/* A reservation that does not fit is taken back at once, because it is in the way of others. */
static HOT struct ledger_room try_to_reserve(const struct ledger *ledger, int device, uint64_t bytes,
                                             const uint64_t limits_bytes[]) {
  struct ledger_flow *flow = &ledger->own->flows[device];
  claim_take(&ledger->own->claim);
  flow->begun_bytes += bytes;
  struct ledger_room room = fit(ledger, device, limits_bytes);
  if (__builtin_expect(room.used_bytes == LEDGER_FULL, 0)) {
    flow->settled_bytes += bytes;
    show_now(ledger, device, held_by_us(ledger, device));
  }
  claim_release(&ledger->own->claim);
  return room;
}

static HOT bool can_ever_fit(const struct ledger *ledger, uint64_t bytes, const uint64_t limits_bytes[]) {
  bool can = bytes <= LARGEST_REQUEST_BYTES;
  for (; ledger != NULL; ledger = ledger->above)
    can &= bytes <= limits_bytes[ledger->level];
  return can;
}

/* All levels are looked at, so that the dead are told apart in each. */
static bool seems_to_fit(const struct ledger *ledger, int device, uint64_t bytes, const uint64_t limits_bytes[]) {
  bool fits = true;
  for (; ledger != NULL; ledger = ledger->above)
    fits &= ledger_used(ledger, device) <= limits_bytes[ledger->level] - bytes;
  return fits;
}

/* The bytes in the way may belong to a dead process, or to a request that is about to be taken back. */
HOT struct ledger_room ledger_reserve(const struct ledger *ledger, int device, uint64_t bytes,
                                      const uint64_t limits_bytes[]) {
  if (!can_ever_fit(ledger, bytes, limits_bytes))
    return no_room;
  struct ledger_room room = try_to_reserve(ledger, device, bytes, limits_bytes);
  for (int looks = 0; room.used_bytes == LEDGER_FULL && looks < LOOKS_BEFORE_REFUSAL; looks++) {
    if (looks > 0)
      clock_sleep_ns(PAUSE_NS);
    if (seems_to_fit(ledger, device, bytes, limits_bytes))
      room = try_to_reserve(ledger, device, bytes, limits_bytes);
  }
  return room;
}

/* ---- counting ---------------------------------------------------------------------------------------------------- */

/* Turns a reservation into an allocation. What was taken beyond the reservation has never been pending. */
HOT void ledger_settle(const struct ledger *ledger, int device, uint64_t reserved_bytes, uint64_t actual_bytes) {
  struct ledger_flow *flow = &ledger->own->flows[device];
  uint64_t unreserved_bytes = subtract_saturating(actual_bytes, reserved_bytes);
  claim_take(&ledger->own->claim);
  flow->begun_bytes += unreserved_bytes;
  flow->settled_bytes += unreserved_bytes + reserved_bytes;
  own_usage(ledger, device)->allocated_bytes += actual_bytes;
  show_what_lags(ledger, device, MOST_KEPT_BYTES);
  claim_release(&ledger->own->claim);
}

void ledger_add(const struct ledger *ledger, int device, uint64_t bytes) {
  ledger_settle(ledger, device, 0, bytes);
}

#define CHANGE(name, count, changed_bytes)                                                                             \
  void name(const struct ledger *ledger, int device, uint64_t bytes) {                                                 \
    claim_take(&ledger->own->claim);                                                                                   \
    uint64_t *count_bytes = &own_usage(ledger, device)->count;                                                         \
    *count_bytes = changed_bytes;                                                                                      \
    show_what_lags(ledger, device, most_unshown(ledger, device));                                                      \
    claim_release(&ledger->own->claim);                                                                                \
  }

CHANGE(ledger_release, allocated_bytes, subtract_saturating(*count_bytes, bytes))
CHANGE(ledger_add_managed, managed_bytes, *count_bytes + bytes)
CHANGE(ledger_release_managed, managed_bytes, subtract_saturating(*count_bytes, bytes))
CHANGE(ledger_add_context, context_bytes, *count_bytes + bytes)
CHANGE(ledger_release_context, context_bytes, subtract_saturating(*count_bytes, bytes))
CHANGE(ledger_release_host, host_bytes, subtract_saturating(*count_bytes, bytes))

bool ledger_reserve_host(const struct ledger *ledger, int device, uint64_t bytes,
                         const uint64_t virtual_limits_bytes[]) {
  if (!can_ever_fit(ledger, bytes, virtual_limits_bytes))
    return false;
  claim_take(&ledger->own->claim);
  own_usage(ledger, device)->host_bytes += bytes;
  bool fits = show_now(ledger, device, held_by_us(ledger, device));
  claim_release(&ledger->own->claim);
  for (const struct ledger *level = ledger; fits && level != NULL; level = level->above) {
    uint64_t host_bytes = ledger_parts(level, device).host_bytes;
    fits = add_saturating(ledger_used(level, device), host_bytes) <= virtual_limits_bytes[level->level];
  }
  if (!fits)
    ledger_release_host(ledger, device, bytes);
  return fits;
}

/* ---- what the driver says ---------------------------------------------------------------------------------------- */

struct ledger_snapshot ledger_snapshot(const struct ledger *ledger, int device) {
  const struct ledger_flow *flow = &ledger->own->flows[device];
  claim_take(&ledger->own->claim);
  struct ledger_snapshot now = {.raises = flow->raises,
                                .begun_bytes = flow->begun_bytes,
                                .pending_bytes = pending(ledger, device),
                                .allocated_bytes = own_usage(ledger, device)->allocated_bytes};
  claim_release(&ledger->own->claim);
  return now;
}

/* Returns how much of what is counted as allocated the driver may have meant in its answer. Bytes that the driver had
 * then and has back since were allocated at the snapshot; bytes that it did not have yet were pending then, or begun
 * later. Bytes that have left it were released before. */
static struct ledger_range tracked(const struct ledger *ledger, int device, const struct ledger_snapshot *before,
                                   uint64_t answered_bytes) {
  const struct ledger_flow *flow = &ledger->own->flows[device];
  uint64_t leaving_bytes = __atomic_load_n(&flow->leaving_bytes, __ATOMIC_SEQ_CST);
  leaving_bytes =
      add_saturating(leaving_bytes, __atomic_load_n(ledger_leaving(ledger, LEDGER_SOME_DEVICE), __ATOMIC_SEQ_CST));
  uint64_t came_bytes = add_saturating(before->pending_bytes, flow->begun_bytes - before->begun_bytes);
  came_bytes = subtract_saturating(came_bytes, answered_bytes);
  return (struct ledger_range){
      .least_bytes =
          subtract_saturating(own_usage(ledger, device)->allocated_bytes, add_saturating(came_bytes, leaving_bytes)),
      .most_bytes = add_saturating(before->allocated_bytes, came_bytes),
  };
}

/* Fills the process's slot for the file of a level. */
static void fill_slot(const struct ledger *ledger, struct vgpu_process_usage *slot) {
  static const struct vgpu_device_usage nothing;
  const struct vgpu_process_usage *own = &ledger->own->usage;
  const struct vgpu_device_usage *shown = level_of(ledger)->shown;
  *slot = (struct vgpu_process_usage){.pid = own->pid,
                                      .pid_namespace = own->pid_namespace,
                                      .shares_memory = __atomic_load_n(&own->shares_memory, __ATOMIC_RELAXED)};
  for (int i = 0; i < VGPU_MAX_DEVICES; i++)
    if (memcmp(&shown[i], &nothing, sizeof nothing) != 0)
      slot->devices[number_of(ledger, i)] = shown[i];
}

/* A process that may write the file may have damaged what this one shows. While a slot is held the file is of this
 * version, and nobody makes it anew. */
static void repair(const struct ledger *ledger) {
  struct usage_start start;
  struct vgpu_process_usage slot, expected;
  if (ledger->own_slot < 0)
    return;
  int way = reach(ledger);
  if (ledger->slots->read(ledger->context, way, &start, sizeof start, 0) &&
      (start.magic != VGPU_USAGE_MAGIC || start.abi_version != VGPU_ABI_VERSION ||
       start.slots_used <= (uint32_t)ledger->own_slot)) {
    start = (struct usage_start){VGPU_USAGE_MAGIC, VGPU_ABI_VERSION, VGPU_MAX_PROCESSES};
    ledger->slots->write(ledger->context, way, &start, sizeof start, 0);
  }
  size_t at = offsetof(struct vgpu_usage, processes[ledger->own_slot]);
  fill_slot(ledger, &expected);
  if (ledger->slots->read(ledger->context, way, &slot, sizeof slot, at) && memcmp(&slot, &expected, sizeof slot) != 0)
    ledger->slots->write(ledger->context, way, &expected, sizeof expected, at);
}

struct ledger_range ledger_correct(const struct ledger *ledger, int device, const struct ledger_snapshot *before,
                                   uint64_t driver_bytes, enum ledger_cause cause, uint64_t answered_bytes) {
  struct ledger_flow *flow = &ledger->own->flows[device];
  struct vgpu_device_usage *own = own_usage(ledger, device);
  claim_take(&ledger->own->claim);
  struct ledger_range allocated = tracked(ledger, device, before, answered_bytes);
  struct ledger_range uncounted = {
      subtract_saturating(driver_bytes, subtract_saturating(allocated.most_bytes, own->managed_bytes)),
      subtract_saturating(driver_bytes, subtract_saturating(allocated.least_bytes, own->managed_bytes)),
  };
  uint64_t surely =
      subtract_saturating(driver_bytes, cause == LEDGER_MADE ? allocated.least_bytes : allocated.most_bytes);
  uint64_t least = between(own->context_bytes, surely, uncounted.most_bytes);
  uint64_t most = flow->raises != before->raises ? UINT64_MAX : uncounted.most_bytes;
  uint64_t corrected = between(add_saturating(own->overhead_bytes, answered_bytes), least, most);
  flow->raises += corrected > own->overhead_bytes;
  own->overhead_bytes = corrected;
  flow->settled_bytes += answered_bytes;
  show_what_lags(ledger, device, MOST_KEPT_BYTES);
  for (const struct ledger *level = ledger; level != NULL; level = level->above)
    repair(level);
  claim_release(&ledger->own->claim);
  return uncounted;
}
