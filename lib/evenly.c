#include "evenly.h"

#define MOST_HAD_NS (INT64_MAX / 4) /* more is damage */

/* What it says, if it waits and may be believed. */
static bool read_waiter(const struct vgpu_waiter *place, int64_t now_ns, struct vgpu_waiter *waiter) {
  waiter->looks_at_ns = __atomic_load_n(&place->looks_at_ns, __ATOMIC_ACQUIRE);
  waiter->owner = __atomic_load_n(&place->owner, __ATOMIC_RELAXED);
  waiter->had_ns = __atomic_load_n(&place->had_ns, __ATOMIC_RELAXED);
  return waiter->looks_at_ns > now_ns - EVENLY_LATE_NS && waiter->looks_at_ns <= now_ns + EVENLY_LONGEST_SLEEP_NS &&
         waiter->had_ns >= 0 && waiter->had_ns <= MOST_HAD_NS;
}

bool evenly_first(const struct vgpu_waiter *places, uint64_t owner, int64_t now_ns, struct vgpu_waiter *first) {
  bool found = false;
  for (int i = 0; i < VGPU_WAITERS; i++) {
    struct vgpu_waiter waiter;
    if (!read_waiter(&places[i], now_ns, &waiter) || waiter.owner == owner || (found && waiter.had_ns >= first->had_ns))
      continue;
    *first = waiter;
    found = true;
  }
  return found;
}

static bool has_place(const struct vgpu_waiter *places, uint64_t owner, int64_t now_ns) {
  struct vgpu_waiter waiter;
  for (int i = 0; i < VGPU_WAITERS; i++)
    if (read_waiter(&places[i], now_ns, &waiter) && waiter.owner == owner)
      return true;
  return false;
}

static bool claim(struct vgpu_waiter *place, uint64_t owner, int64_t now_ns) {
  struct vgpu_waiter before;
  return !read_waiter(place, now_ns, &before) &&
         __atomic_compare_exchange_n(&place->owner, &before.owner, owner, false, __ATOMIC_RELAXED, __ATOMIC_RELAXED);
}

static int find_place(struct vgpu_waiter *places, uint64_t owner, int64_t now_ns) {
  if (has_place(places, owner, now_ns))
    return -1;
  for (int i = 0; i < VGPU_WAITERS; i++)
    if (claim(&places[i], owner, now_ns))
      return i;
  return -1;
}

/* Who comes so late that it is not believed any more may find its place taken. */
static bool is_ours(const struct vgpu_waiter *places, int place, uint64_t owner) {
  return place >= 0 && __atomic_load_n(&places[place].owner, __ATOMIC_RELAXED) == owner;
}

int evenly_wait(struct vgpu_waiter *places, int place, const struct vgpu_waiter *waiter, int64_t now_ns) {
  if (!is_ours(places, place, waiter->owner))
    place = find_place(places, waiter->owner, now_ns);
  if (place < 0)
    return -1;
  __atomic_store_n(&places[place].had_ns, waiter->had_ns, __ATOMIC_RELAXED);
  __atomic_store_n(&places[place].looks_at_ns, waiter->looks_at_ns, __ATOMIC_RELEASE);
  return place;
}

void evenly_leave(struct vgpu_waiter *places, int place, uint64_t owner) {
  if (is_ours(places, place, owner))
    __atomic_store_n(&places[place].looks_at_ns, 0, __ATOMIC_RELAXED);
}
