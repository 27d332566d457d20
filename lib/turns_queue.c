/* Who waits for the turn, who of them goes first, and when the turn may be theirs. */
#include "abi.h"
#include "turns_parts.h"

#define FORGOTTEN_NS 50000000LL /* a waiter that has not looked for this long does not count */

static bool waits(const struct turns_slot *slot, int64_t now_ns) {
  return slot->ticket != 0 && turns_seen_within(slot, now_ns, FORGOTTEN_NS);
}

/* Who has waited for long has the highest priority. */
static uint32_t priority_of(const struct turns_slot *slot, int64_t now_ns) {
  bool waits_long = slot->ticket != 0 && turns_is_older(slot->ticket, now_ns, TURNS_STARVED_NS);
  return waits_long ? VGPU_PRIORITY_HIGH : slot->terms.priority;
}

/* For those of lower priority nobody makes way. */
bool turns_another_waits(const struct turns *turns, int64_t now_ns) {
  for (int i = 0; i < turns_slots_used(turns); i++) {
    const struct turns_slot *slot = &turns->seen.slots[i];
    if (i != turns->slot && waits(slot, now_ns) && priority_of(slot, now_ns) <= turns->own.terms.priority)
      return true;
  }
  return false;
}

/* A tenant's processes do not have the turn one after the other while another tenant waits: it would have a third of
 * the time beside two of them, and they would find their tokens used up. */
static bool is_of_last_tenant(const struct turns *turns, const struct turns_slot *slot) {
  return slot->terms.tenant == turns->seen.head.tenant;
}

/* Those in the queue before us. */
int turns_rank(const struct turns *turns, int64_t now_ns) {
  uint32_t priority = priority_of(&turns->own, now_ns);
  bool last = is_of_last_tenant(turns, &turns->own);
  int before = 0;
  for (int i = 0; i < turns_slots_used(turns); i++) {
    const struct turns_slot *slot = &turns->seen.slots[i];
    if (i == turns->slot || !waits(slot, now_ns))
      continue;
    uint32_t others = priority_of(slot, now_ns);
    bool longer = slot->ticket < turns->own.ticket || (slot->ticket == turns->own.ticket && i < turns->slot);
    bool others_last = is_of_last_tenant(turns, slot), goes_first = others_last != last ? last : longer;
    before += others < priority || (others == priority && goes_first);
  }
  return before;
}

/* When the turn may be taken from its holder. */
int64_t turns_takeable_at_ns(const struct turns *turns, int holder, int64_t now_ns) {
  if (holder >= turns_slots_used(turns))
    return now_ns;
  const struct turns_slot *slot = &turns->seen.slots[holder];
  int64_t idle_at_ns = turns_min(slot->idle_at_ns, now_ns + TURNS_PATIENCE_NS);
  int64_t slice_end_ns = turns_min(slot->slice_end_ns, now_ns + TURNS_SLICE_NS);
  return turns_min(idle_at_ns + TURNS_GRACE_NS, slice_end_ns + TURNS_OVERSTAY_NS);
}

bool turns_are_wanted(struct turns *turns) {
  int64_t now_ns = turns_begin_look(turns);
  int holder = turns_holder_of(turns->seen.head.turn);
  bool wanted = false;
  for (int i = 0; i < turns_slots_used(turns) && !wanted; i++) {
    const struct turns_slot *slot = &turns->seen.slots[i];
    bool wants = waits(slot, now_ns) || (i == holder && turns_takeable_at_ns(turns, i, now_ns) > now_ns);
    wanted = wants && i != turns->slot && turns_is_another_tenant(turns, slot) &&
             priority_of(slot, now_ns) <= turns->own.terms.priority;
  }
  turns_end_look(turns);
  return wanted;
}

/* When the holder is expected to pass its turn: as it has announced, or when its slice ends. */
int64_t turns_expected_pass_ns(const struct turns *turns) {
  int holder = turns_holder_of(turns->seen.head.turn);
  if (holder < 0 || holder >= turns_slots_used(turns) || turns->seen.slots[holder].slice_end_ns < 0)
    return 0;
  const struct turns_slot *slot = &turns->seen.slots[holder];
  return slot->passes_at_ns > slot->slice_end_ns - TURNS_SLICE_NS ? slot->passes_at_ns : slot->slice_end_ns;
}
