/* What falls to each of the tenants that share a GPU. Who publishes false terms gets no more by them himself, and takes
 * from those without a hard limit at most what a tenant with such terms would. */
#include "abi.h"
#include "turns_parts.h"

/* The limits of the other tenants: sums of percents, and how many there are without one. */
struct others {
  uint32_t hard, burst, unlimited;
};

static bool is_known(const uint64_t *known, int count, uint64_t tenant) {
  for (int i = 0; i < count; i++)
    if (known[i] == tenant)
      return true;
  return false;
}

static void add(struct others *others, uint32_t percent, uint32_t policy) {
  if (percent >= VGPU_NO_SM_LIMIT)
    others->unlimited++;
  else if (policy == VGPU_SM_BURST)
    others->burst += percent;
  else
    others->hard += percent;
}

static struct others find_others(struct turns *turns, const struct turns_terms *own) {
  uint64_t known[TURNS_SLOTS + 1] = {own->tenant};
  int count = 1;
  struct others others = {0};
  int64_t now_ns = turns_begin_look(turns);
  for (int i = 0; i < turns_slots_used(turns); i++) {
    const struct turns_slot *slot = &turns->seen.slots[i];
    bool active = turns_seen_within(slot, now_ns, TURNS_ACTIVE_NS);
    if (!active || slot->terms.priority > own->priority || is_known(known, count, slot->terms.tenant))
      continue;
    known[count++] = slot->terms.tenant;
    add(&others, slot->terms.percent, slot->terms.policy);
  }
  turns_end_look(turns);
  return others;
}

static uint32_t at_least_one(uint32_t percent) {
  return percent > 0 ? percent : 1;
}

static uint32_t without_limit(struct others others) {
  uint32_t limited = others.hard + others.burst;
  return at_least_one((limited < 100 ? 100 - limited : 0) / (others.unlimited + 1));
}

static uint32_t of_burst(uint32_t weight, struct others others) {
  uint32_t all = weight + others.burst + others.hard;
  if (all > 100)
    return at_least_one(weight * 100 / all);
  if (others.unlimited > 0)
    return weight;
  return weight * (100 - others.hard) / (weight + others.burst);
}

uint32_t turns_share_percent(struct turns *turns, const struct turns_terms *own) {
  uint32_t percent = at_least_one(own->percent);
  if (percent >= VGPU_NO_SM_LIMIT)
    return without_limit(find_others(turns, own));
  return own->policy == VGPU_SM_BURST ? of_burst(percent, find_others(turns, own)) : percent;
}

bool turns_share_all(struct turns *turns) {
  claim_take(&turns->lock);
  struct turns_terms own = turns->own.terms;
  claim_release(&turns->lock);
  struct others others = find_others(turns, &own);
  add(&others, own.percent, own.policy);
  return others.unlimited > 0 || others.hard + others.burst >= 100;
}
