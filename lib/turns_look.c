/* What is seen of the others: who is there, who waits, and what falls to each. */
#include "abi.h"
#include "turns_parts.h"

#include <string.h>

/* What strangers may do to us is bounded by these: of locks that are asked about in a look; of those that wait and let
 * a free turn pass, while those behind them wait; and of tenants, so that one without a limit keeps 1/17. */
#define MOST_ASKED 4
#define MOST_BEFORE 4

/* Any number may stand in the file: nothing is added to it that has not been bounded. */
static bool is_within(int64_t at_ns, int64_t now_ns, int64_t age_ns) {
  return at_ns > now_ns - age_ns && at_ns <= now_ns + age_ns;
}

static bool is_active(const struct turns *turns, int slot, int64_t now_ns) {
  return slot != turns->slot && is_within(turns->seen.slots[slot].seen_ns, now_ns, TURNS_ACTIVE_NS);
}

/* True when it took a system call. */
static bool ask(struct turns *turns, int slot, int64_t now_ns) {
  if (!is_active(turns, slot, now_ns) || now_ns - turns->asked_ns[slot] < TURNS_KNOWN_NS)
    return false;
  turns->held[slot] = turns->system->is_held(turns->file, slot);
  turns->asked_ns[slot] = now_ns;
  return true;
}

/* Who has the turn first, and the others one after the other. */
static void ask_some(struct turns *turns, int64_t now_ns) {
  int holder = turns_holder_of(turns->seen.head.lease), slots = 0;
  int asked = holder >= 0 && holder < TURNS_SLOTS && ask(turns, holder, now_ns);
  for (; asked < MOST_ASKED && slots < TURNS_SLOTS; slots++) {
    asked += ask(turns, turns->next_asked, now_ns);
    turns->next_asked = (turns->next_asked + 1) % TURNS_SLOTS;
  }
  turns->asked_all = slots == TURNS_SLOTS;
}

static void note_tenant(struct turns *turns, uint64_t tenant) {
  int i = 0;
  while (i < turns->tenants_count && turns->tenants[i] != tenant)
    i++;
  if (i == turns->tenants_count && i < TURNS_MOST_TENANTS)
    turns->tenants[turns->tenants_count++] = tenant;
}

void turns_look(struct turns *turns, int64_t now_ns) {
  if (!turns->system->read(turns->file, &turns->seen, sizeof turns->seen, 0)) {
    memset(&turns->seen, 0, sizeof turns->seen);
    turns->system->write(turns->file, &turns->seen.end, sizeof turns->seen.end, offsetof(struct turns_file, end));
  }
  turns->looked_ns = now_ns;
  ask_some(turns, now_ns);
  turns->others_count = turns->tenants_count = 0;
  note_tenant(turns, turns->own.terms.tenant);
  for (int i = 0; i < TURNS_SLOTS; i++)
    if (turns->held[i] && is_active(turns, i, now_ns)) {
      turns->others[turns->others_count++] = i;
      note_tenant(turns, turns->seen.slots[i].terms.tenant);
    }
}

static int64_t begin_look(struct turns *turns) {
  claim_take(&turns->lock);
  int64_t now_ns = turns->system->now_ns();
  bool alone = turns->others_count == 0 && turns->asked_all;
  if (now_ns - turns->looked_ns >= (alone ? TURNS_KNOWN_NS : TURNS_LATELY_NS))
    turns_look(turns, now_ns);
  return now_ns;
}

/* ---- who is there, and who waits -------------------------------------------------------------------------------- */

static bool waits(const struct turns_slot *slot, int64_t now_ns) {
  return is_within(slot->ticket_ns, now_ns, TURNS_ACTIVE_NS); /* nobody's patience is longer */
}

static uint32_t priority_of(const struct turns_slot *slot, int64_t now_ns) {
  bool is_starved = waits(slot, now_ns) && slot->ticket_ns < now_ns - TURNS_STARVED_NS;
  return is_starved ? VGPU_PRIORITY_HIGH : slot->terms.priority;
}

/* One of the others, as we see it. */
enum trait { IS_THERE = 0, IS_ANOTHER_TENANT = 1, IS_HIGHER = 2, IS_NOT_LOWER = 4, WAITS = 8, HAS_TURN = 16 };

static int traits_of(const struct turns *turns, int number, int64_t now_ns) {
  const struct turns_slot *slot = &turns->seen.slots[number];
  const struct turns_terms *own = &turns->own.terms;
  int64_t left_ns = turns_end_ns(turns->seen.head.lease) - now_ns;
  bool has_turn = turns_holder_of(turns->seen.head.lease) == number && left_ns > 0 && left_ns < 2 * TURNS_LONGEST_NS;
  return (slot->terms.tenant != own->tenant ? IS_ANOTHER_TENANT : 0) |
         (slot->terms.priority < own->priority ? IS_HIGHER : 0) |
         (priority_of(slot, now_ns) <= own->priority ? IS_NOT_LOWER : 0) | (waits(slot, now_ns) ? WAITS : 0) |
         (has_turn ? HAS_TURN : 0);
}

/* Has one of them all of these? */
static bool has_one(const struct turns *turns, int64_t now_ns, int traits) {
  bool found = false;
  for (int i = 0; i < turns->others_count && !found; i++)
    found = (traits_of(turns, turns->others[i], now_ns) & traits) == traits;
  return found;
}

static bool look_for_one(struct turns *turns, int traits, int or_traits) {
  int64_t now_ns = begin_look(turns);
  bool found = has_one(turns, now_ns, traits) || has_one(turns, now_ns, or_traits);
  claim_release(&turns->lock);
  return found;
}

bool turns_have_company(struct turns *turns) {
  return look_for_one(turns, IS_THERE, IS_THERE);
}

bool turns_have_another_tenant(struct turns *turns) {
  return look_for_one(turns, IS_ANOTHER_TENANT, IS_ANOTHER_TENANT);
}

bool turns_high_priority_is_there(struct turns *turns) {
  return look_for_one(turns, IS_HIGHER, IS_HIGHER);
}

bool turns_are_wanted(struct turns *turns) {
  const int wanted = IS_ANOTHER_TENANT | IS_NOT_LOWER;
  return look_for_one(turns, wanted | WAITS, wanted | HAS_TURN);
}

bool turns_another_has_it(const struct turns *turns, int64_t now_ns) {
  return has_one(turns, now_ns, HAS_TURN);
}

/* Tenants take turns in a circle, in the order of their numbers, and whose slice it is goes first: that is the same on
 * all GPUs on which they meet, and two processes of a tenant do not have what falls to two. */
static uint64_t place_of(const struct turns *turns, uint64_t tenant, int64_t now_ns) {
  uint64_t count = (uint64_t)turns->tenants_count, place = count - turns_slice_number(now_ns) % count;
  for (int i = 0; i < turns->tenants_count; i++)
    place += turns->tenants[i] < tenant;
  return place % count;
}

static bool goes_before_us(const struct turns *turns, const struct turns_slot *slot, int64_t now_ns) {
  const struct turns_slot *own = &turns->own;
  uint32_t theirs = priority_of(slot, now_ns), ours = priority_of(own, now_ns);
  if (!waits(slot, now_ns) || theirs != ours)
    return waits(slot, now_ns) && theirs < ours;
  uint64_t their_place = place_of(turns, slot->terms.tenant, now_ns),
           place = place_of(turns, own->terms.tenant, now_ns);
  if (their_place != place)
    return their_place < place;
  int64_t longer_ns = (own->ticket_ns != 0 ? own->ticket_ns : now_ns) - slot->ticket_ns; /* we may have it now */
  return longer_ns > 0 || (longer_ns == 0 && slot < &turns->seen.slots[turns->slot]);
}

int turns_rank(const struct turns *turns, int64_t now_ns) {
  int before = 0;
  for (int i = 0; i < turns->others_count && before < MOST_BEFORE; i++)
    before += goes_before_us(turns, &turns->seen.slots[turns->others[i]], now_ns);
  return before;
}

bool turns_must_pass(struct turns *turns, int64_t in_flight_ns) {
  int64_t now_ns = begin_look(turns);
  bool used_up = now_ns + in_flight_ns >= turns->slice_end_ns;
  bool must = turns->lease != 0 && (used_up || !turns->was_starved) &&
              has_one(turns, now_ns, used_up ? IS_NOT_LOWER | WAITS : IS_HIGHER | WAITS);
  if (must && used_up && turns_rank(turns, now_ns) == 0) {
    turns->slice_end_ns = turns_slice_end_ns(now_ns); /* the next slice is ours, too */
    must = false;
  }
  claim_release(&turns->lock);
  return must;
}

/* ---- what falls to each ----------------------------------------------------------------------------------------- */

/* The limits of the other tenants: sums of percents, and how many there are without one. */
struct others {
  uint32_t hard, burst, unlimited;
};

static void add(struct others *others, const struct turns_terms *terms) {
  if (terms->percent >= VGPU_NO_SM_LIMIT)
    others->unlimited++;
  else
    *(terms->policy == VGPU_SM_BURST ? &others->burst : &others->hard) += terms->percent;
}

static struct others find_others(struct turns *turns, const struct turns_terms *own) {
  uint64_t known[TURNS_MOST_TENANTS] = {own->tenant};
  int count = 1;
  struct others others = {0};
  begin_look(turns);
  for (int i = 0; i < turns->others_count && count < TURNS_MOST_TENANTS; i++) {
    const struct turns_terms *terms = &turns->seen.slots[turns->others[i]].terms;
    int same = 0;
    while (same < count && known[same] != terms->tenant)
      same++;
    if (same < count || terms->priority > own->priority)
      continue;
    known[count++] = terms->tenant;
    add(&others, terms);
  }
  claim_release(&turns->lock);
  return others;
}

static uint32_t at_least_one(uint32_t percent) {
  return percent > 0 ? percent : 1;
}

uint32_t turns_share_percent(struct turns *turns, const struct turns_terms *own) {
  uint32_t weight = at_least_one(own->percent);
  bool is_unlimited = weight >= VGPU_NO_SM_LIMIT;
  if (!is_unlimited && own->policy != VGPU_SM_BURST)
    return weight;
  struct others others = find_others(turns, own);
  uint32_t limited = others.hard + others.burst;
  if (is_unlimited)
    return at_least_one((limited < 100 ? 100 - limited : 0) / (others.unlimited + 1));
  if (weight + limited > 100)
    return at_least_one(weight * 100 / (weight + limited));
  return others.unlimited > 0 ? weight : weight * (100 - others.hard) / (weight + others.burst);
}

bool turns_share_all(struct turns *turns) {
  claim_take(&turns->lock);
  struct turns_terms own = turns->own.terms;
  claim_release(&turns->lock);
  struct others others = find_others(turns, &own);
  add(&others, &own);
  return others.unlimited > 0 || others.hard + others.burst >= 100;
}
