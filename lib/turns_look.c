/* What is seen of the others, and how old that may be. */
#include "turns_parts.h"

#include <string.h>

#define FIRST_SLOTS 8 /* read together with the head */

int turns_slots_used(const struct turns *turns) {
  uint32_t used = turns->seen.head.slots_used;
  return used < TURNS_SLOTS ? (int)used : TURNS_SLOTS;
}

void turns_read(struct turns *turns, void *to, size_t size, size_t at) {
  if (!turns->system->read(turns->file, to, size, at))
    memset(to, 0, size);
}

bool turns_is_another_tenant(const struct turns *turns, const struct turns_slot *slot) {
  return slot->terms.tenant != turns->own.terms.tenant;
}

/* As it says itself; or as was said on its behalf, until it was to be idle or is heard again. */
static bool is_stuck(const struct turns_slot *slot, int64_t now_ns) {
  return slot->stuck == 1 || (slot->overstayed_ns > slot->seen_ns && now_ns < slot->idle_at_ns);
}

static bool is_silent(const struct turns_slot *slot, int64_t now_ns) {
  return slot->at_work == 1 && turns_is_older(slot->seen_ns, now_ns, TURNS_SILENT_NS);
}

static void count_those_at_work(struct turns *turns, int64_t now_ns) {
  turns->stuck = turns->silent = 0;
  for (int i = 0; i < turns_slots_used(turns); i++) {
    const struct turns_slot *slot = &turns->seen.slots[i];
    bool stuck = is_stuck(slot, now_ns), silent = !stuck && is_silent(slot, now_ns);
    if (i == turns->slot || !(stuck || silent) || !turns_is_another_tenant(turns, slot) ||
        !turns->system->is_held(turns->file, i))
      continue;
    turns->stuck += stuck;
    turns->silent += silent;
  }
}

void turns_look(struct turns *turns, int64_t now_ns) {
  turns_read(turns, &turns->seen, turns_place_of(FIRST_SLOTS), 0);
  int more = turns_slots_used(turns) - FIRST_SLOTS;
  if (more > 0)
    turns_read(turns, &turns->seen.slots[FIRST_SLOTS], (size_t)more * sizeof(struct turns_slot),
               turns_place_of(FIRST_SLOTS));
  if (turns_slots_used(turns) <= turns->slot) { /* somebody has cut us off */
    turns_make_room(turns);
    turns_publish(turns, now_ns);
  }
  turns->looked_ns = now_ns;
  count_those_at_work(turns, now_ns);
  turns->company = turns->stuck + turns->silent > 0;
  for (int i = 0; i < turns_slots_used(turns); i++)
    turns->company |= i != turns->slot && turns_seen_within(&turns->seen.slots[i], now_ns, TURNS_ACTIVE_NS);
}

int64_t turns_begin_look(struct turns *turns) {
  claim_take(&turns->lock);
  int64_t now_ns = turns->system->now_ns();
  if (now_ns - turns->looked_ns >= (turns->company ? TURNS_LATELY_NS : TURNS_LATELY_ALONE_NS))
    turns_look(turns, now_ns);
  return now_ns;
}

void turns_end_look(struct turns *turns) {
  claim_release(&turns->lock);
}

bool turns_have_company(struct turns *turns) {
  turns_begin_look(turns);
  bool company = turns->company;
  turns_end_look(turns);
  return company;
}

bool turns_have_another_tenant(struct turns *turns) {
  int64_t now_ns = turns_begin_look(turns);
  bool found = turns->stuck + turns->silent > 0;
  for (int i = 0; i < turns_slots_used(turns) && !found; i++) {
    const struct turns_slot *slot = &turns->seen.slots[i];
    found =
        i != turns->slot && turns_seen_within(slot, now_ns, TURNS_ACTIVE_NS) && turns_is_another_tenant(turns, slot);
  }
  turns_end_look(turns);
  return found;
}

uint32_t turns_count_stuck(struct turns *turns) {
  turns_begin_look(turns);
  uint32_t count = turns->stuck;
  turns_end_look(turns);
  return count;
}

bool turns_have_quiet_tenant(struct turns *turns) {
  int64_t now_ns = turns_begin_look(turns);
  bool found = false;
  for (int i = 0; i < turns_slots_used(turns) && !found; i++) {
    const struct turns_slot *slot = &turns->seen.slots[i];
    found = i != turns->slot && slot->seen_ns != 0 && !turns_seen_within(slot, now_ns, TURNS_SILENT_NS) &&
            turns_is_another_tenant(turns, slot) && turns->system->is_held(turns->file, i);
  }
  turns_end_look(turns);
  return found;
}

uint32_t turns_count_silent(struct turns *turns) {
  turns_begin_look(turns);
  uint32_t count = turns->silent;
  turns_end_look(turns);
  return count;
}
