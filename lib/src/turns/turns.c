#include "turns/turns.h"

#include "abi.h"
#include "base/claim.h"

#include <string.h>

#define UNEVEN_NS (TURNS_SLICE_NS / 5)

/* Slices end at the same instants on all GPUs, so that programs whose kernels wait for each other across them find both
 * at once; and unevenly, so that the steps of a program do not keep time with them: multiples of the golden ratio are
 * spread over these. */
static uint64_t slice_number(int64_t now_ns) {
  return (uint64_t)(now_ns + TURNS_SLICE_NS / 2) / TURNS_SLICE_NS + 1;
}

static int64_t slice_end_ns(int64_t now_ns) {
  uint64_t number = slice_number(now_ns), part = (uint32_t)number * 2654435769U;
  return (int64_t)(number * TURNS_SLICE_NS + (part * UNEVEN_NS >> 32));
}

static void publish(struct turns *turns, int64_t now_ns) {
  turns->own.seen_ns = now_ns;
  turns->system->write(turns->file, &turns->own, sizeof turns->own,
                       offsetof(struct turns_file, slots) + (size_t)turns->slot * sizeof turns->own);
}

static void set_end(struct turns *turns, int64_t now_ns, int64_t end_ns) {
  turns->own.turn_ends_ns = end_ns;
  publish(turns, now_ns);
}

static void set_ticket(struct turns *turns, int64_t ticket_ns, int64_t now_ns) {
  bool is_old = turns->own.ticket_ns != ticket_ns || now_ns - turns->own.seen_ns >= TURNS_KNOWN_NS;
  turns->own.ticket_ns = ticket_ns;
  if (is_old)
    publish(turns, now_ns);
}

void turns_begin(struct turns *turns, const struct turns_system *system, void *file, int slot) {
  *turns = (struct turns){.system = system, .file = file, .slot = slot};
  publish(turns, 0);
}

void turns_set_terms(struct turns *turns, const struct turns_terms *terms) {
  claim_take(&turns->lock);
  turns->own.terms = *terms;
  claim_release(&turns->lock);
}

void turns_note_presence(struct turns *turns) {
  claim_take(&turns->lock);
  set_ticket(turns, turns->own.ticket_ns, turns->system->now_ns());
  claim_release(&turns->lock);
}

/* Any number may stand in the file: nothing is added to it that has not been bounded. */
static bool is_recent(int64_t at_ns, int64_t now_ns) {
  return at_ns > now_ns - TURNS_PATIENCE_NS && at_ns <= now_ns + TURNS_PATIENCE_NS;
}

static uint32_t priority_of(const struct turns_slot *slot, int64_t now_ns) {
  bool is_starved = is_recent(slot->ticket_ns, now_ns) && slot->ticket_ns < now_ns - TURNS_LONGEST_NS;
  return is_starved ? VGPU_PRIORITY_HIGH : slot->terms.priority;
}

static void note_tenant(struct turns *turns, const struct turns_terms *terms) {
  int i = 0;
  while (i < turns->tenants_count && turns->tenants[i] != terms->tenant)
    i++;
  if (i < turns->tenants_count || i == TURNS_MOST_TENANTS)
    return;
  turns->tenants[turns->tenants_count++] = terms->tenant;
  if (i == 0 || terms->priority > turns->own.terms.priority) /* the first one is ours */
    return;
  if (terms->percent >= VGPU_NO_SM_LIMIT)
    turns->view.unlimited++;
  else
    *(terms->policy == VGPU_SM_BURST ? &turns->view.burst : &turns->view.hard) += terms->percent;
}

/* Tenants take turns in a circle, in the order of their numbers, and whose slice it is goes first: that is the same on
 * all GPUs on which they meet, and two processes of a tenant do not have what falls to two. */
static uint64_t place_of(const struct turns *turns, const struct turns_slot *slot, int64_t now_ns) {
  uint64_t count = (uint64_t)turns->tenants_count, place = count - slice_number(now_ns) % count;
  for (int i = 0; i < turns->tenants_count; i++)
    place += turns->tenants[i] < slot->terms.tenant;
  return place % count;
}

/* One that waits. Without a ticket we have the turn. */
static bool goes_before_us(const struct turns *turns, const struct turns_slot *slot, int64_t now_ns) {
  const struct turns_slot *own = &turns->own;
  uint32_t theirs = priority_of(slot, now_ns), ours = priority_of(own, now_ns);
  if (theirs != ours)
    return theirs < ours;
  uint64_t their_place = place_of(turns, slot, now_ns), place = place_of(turns, own, now_ns);
  if (their_place != place)
    return their_place < place;
  int64_t longer_ns = (own->ticket_ns != 0 ? own->ticket_ns : now_ns) - slot->ticket_ns;
  return longer_ns > 0 || (longer_ns == 0 && slot < &turns->seen.slots[turns->slot]);
}

static void add_to_view(struct turns *turns, const struct turns_slot *slot, int64_t now_ns) {
  struct turns_view *view = &turns->view;
  const struct turns_terms *own = &turns->own.terms;
  bool is_another_tenant = slot->terms.tenant != own->tenant, waits = is_recent(slot->ticket_ns, now_ns);
  bool believed = slot->turn_ends_ns < now_ns + 2 * TURNS_LONGEST_NS;
  bool has_turn = believed && slot->turn_ends_ns > now_ns;
  view->company = true;
  view->another_tenant |= is_another_tenant;
  view->higher_priority |= slot->terms.priority < own->priority;
  view->wanted |= is_another_tenant && (waits || has_turn) && priority_of(slot, now_ns) <= own->priority;
  view->higher_waits |= waits && slot->terms.priority < turns->turn_priority;
  view->goes_before |= waits && goes_before_us(turns, slot, now_ns);
  view->is_leased |= has_turn;
  if (believed && slot->turn_ends_ns > view->free_at_ns) {
    view->free_at_ns = slot->turn_ends_ns;
    view->passes_at_ns = slot->seen_ns + (slot->turn_ends_ns - slot->seen_ns) / 2 - TURNS_GRACE_NS;
  }
}

static void look(struct turns *turns, int64_t now_ns) {
  if (!turns->system->read(turns->file, &turns->seen, sizeof turns->seen, 0)) {
    memset(&turns->seen, 0, sizeof turns->seen);
    turns->system->write(turns->file, &turns->seen.end, sizeof turns->seen.end, offsetof(struct turns_file, end));
  }
  bool asks = now_ns - turns->asked_ns >= TURNS_KNOWN_NS, is_there[TURNS_SLOTS];
  turns->asked_ns = asks ? now_ns : turns->asked_ns;
  turns->looked_ns = now_ns;
  turns->tenants_count = 0;
  turns->view = (struct turns_view){.free_at_ns = turns->own.turn_ends_ns};
  note_tenant(turns, &turns->own.terms);
  for (int i = 0; i < TURNS_SLOTS; i++) {
    bool is_active = i != turns->slot && is_recent(turns->seen.slots[i].seen_ns, now_ns);
    if (asks)
      turns->held[i] = is_active && turns->system->is_held(turns->file, i);
    if ((is_there[i] = is_active && turns->held[i]))
      note_tenant(turns, &turns->seen.slots[i].terms);
  }
  for (int i = 0; i < TURNS_SLOTS; i++)
    if (is_there[i])
      add_to_view(turns, &turns->seen.slots[i], now_ns);
}

static int64_t begin_look(struct turns *turns) {
  claim_take(&turns->lock);
  int64_t now_ns = turns->system->now_ns();
  if (now_ns - turns->looked_ns >= (turns->view.company ? TURNS_GRACE_NS : TURNS_KNOWN_NS))
    look(turns, now_ns);
  return now_ns;
}

struct turns_view turns_look(struct turns *turns) {
  begin_look(turns);
  struct turns_view view = turns->view;
  claim_release(&turns->lock);
  return view;
}

uint32_t turns_share_percent(struct turns *turns, const struct turns_terms *own) {
  uint32_t weight = own->percent > 0 ? own->percent : 1;
  if (weight < VGPU_NO_SM_LIMIT && own->policy != VGPU_SM_BURST)
    return weight;
  struct turns_view view = turns_look(turns);
  uint32_t limited = view.hard + view.burst, share = weight;
  if (weight >= VGPU_NO_SM_LIMIT)
    share = (limited < 100 ? 100 - limited : 0) / (view.unlimited + 1);
  else if (weight + limited > 100)
    share = weight * 100 / (weight + limited);
  else if (view.unlimited == 0)
    share = weight * (100 - view.hard) / (weight + view.burst);
  return share > 0 ? share : 1;
}

/* When two take it at once, the one that looks later sees the other. Nobody else takes it before our lease ends: so
 * a look is needed only where that has ended by the time that the next one is written. */
static bool lease_until(struct turns *turns, int64_t now_ns, int64_t end_ns) {
  int64_t ours_until_ns = turns->own.turn_ends_ns;
  set_end(turns, now_ns, min(end_ns, now_ns + TURNS_LONGEST_NS));
  if (turns->system->now_ns() < ours_until_ns)
    return true;
  look(turns, now_ns);
  if (!turns->view.is_leased)
    return true;
  set_end(turns, now_ns, now_ns);
  return false;
}

bool turns_is_ours(struct turns *turns) {
  claim_take(&turns->lock);
  bool ours = turns->system->now_ns() < turns->own.turn_ends_ns;
  claim_release(&turns->lock);
  return ours;
}

/* Told rarely where it comes after each launch. */
void turns_note_idleness(struct turns *turns) {
  claim_take(&turns->lock);
  int64_t now_ns = turns->system->now_ns(), end_ns = now_ns + TURNS_GRACE_NS;
  if (turns->own.turn_ends_ns > end_ns && now_ns - turns->own.seen_ns >= TURNS_GRACE_NS)
    set_end(turns, now_ns, end_ns);
  claim_release(&turns->lock);
}

/* Put off by a little more, so that it need not be at each launch. A process that launches waits no more, also when it
 * left its wait by siglongjmp. */
void turns_note_activity(struct turns *turns, int64_t idle_at_ns) {
  claim_take(&turns->lock);
  int64_t now_ns = turns->system->now_ns(), end_ns = turns->own.turn_ends_ns;
  set_ticket(turns, 0, now_ns);
  if (now_ns < end_ns && idle_at_ns + TURNS_GRACE_NS > end_ns)
    lease_until(turns, now_ns, idle_at_ns + 2 * TURNS_GRACE_NS);
  claim_release(&turns->lock);
}

void turns_pass(struct turns *turns) {
  claim_take(&turns->lock);
  int64_t now_ns = turns->system->now_ns();
  uint32_t wake = (uint32_t)now_ns;
  bool passes = now_ns < turns->own.turn_ends_ns;
  if (passes) {
    set_end(turns, now_ns, now_ns);
    turns->system->write(turns->file, &wake, sizeof wake, offsetof(struct turns_file, wake));
  }
  claim_release(&turns->lock);
  if (passes)
    turns->system->wake_all(turns->file);
}

bool turns_must_pass(struct turns *turns, int64_t in_flight_ns) {
  int64_t now_ns = begin_look(turns);
  bool ours = now_ns < turns->own.turn_ends_ns, used_up = now_ns + in_flight_ns >= turns->slice_end_ns;
  bool must = used_up ? turns->view.goes_before : turns->view.higher_waits;
  if (used_up && !must)
    turns->slice_end_ns = slice_end_ns(now_ns); /* the next slice is ours, too */
  claim_release(&turns->lock);
  return ours && must;
}

/* Takes the turn, or says until when there is nothing to be done about it. */
static bool try_take(struct turns *turns, int64_t now_ns, int64_t *until_ns) {
  look(turns, now_ns);
  *until_ns = turns->view.free_at_ns + (turns->view.goes_before ? TURNS_GRACE_NS : 0);
  if (*until_ns > now_ns)
    return false;
  turns->slice_end_ns = slice_end_ns(now_ns);
  turns->turn_priority = priority_of(&turns->own, now_ns);
  return lease_until(turns, now_ns, now_ns + 2 * TURNS_GRACE_NS);
}

/* A lease may end earlier than it said, which wakes nobody. It ends after twice the time that its holder expects to
 * need: about then whoever is next stays awake, since a thread that sleeps wakes up a tenth of a millisecond late. */
static int64_t time_to_wait_ns(const struct turns *turns, int64_t now_ns, int64_t until_ns, bool *awake) {
  int64_t left_ns = until_ns - now_ns, to_pass_ns = turns->view.passes_at_ns - now_ns;
  bool is_next = !turns->view.goes_before;
  *awake = is_next && to_pass_ns < TURNS_GRACE_NS && to_pass_ns > -TURNS_GRACE_NS;
  if (*awake)
    return min(left_ns, to_pass_ns + TURNS_GRACE_NS);
  if (is_next && to_pass_ns > 0)
    return min(to_pass_ns - TURNS_GRACE_NS + 1, TURNS_KNOWN_NS);
  return left_ns > TURNS_GRACE_NS ? min(left_ns / 2, TURNS_KNOWN_NS) : left_ns;
}

/* Threads of one process share its slot and its ticket. The time for which the process was stopped is nobody's fault,
 * and takes no patience. */
bool turns_take(struct turns *turns) {
  const struct turns_system *system = turns->system;
  int64_t now_ns = system->now_ns(), patience_ns = TURNS_PATIENCE_NS, until_ns;
  claim_take(&turns->lock);
  while (now_ns >= turns->distrust_until_ns && now_ns >= turns->own.turn_ends_ns) {
    set_ticket(turns, turns->own.ticket_ns != 0 ? turns->own.ticket_ns : now_ns, now_ns);
    if (try_take(turns, now_ns, &until_ns))
      break;
    if (patience_ns <= 0)
      turns->distrust_until_ns = now_ns + TURNS_DISTRUST_NS;
    uint32_t wake = turns->seen.wake;
    bool awake;
    int64_t began_ns = now_ns, wait_ns = time_to_wait_ns(turns, now_ns, until_ns, &awake);
    claim_release(&turns->lock);
    if (wait_ns > 0)
      system->wait(turns->file, wake, wait_ns, awake);
    claim_take(&turns->lock);
    now_ns = system->now_ns();
    patience_ns -= min(now_ns - began_ns, 2 * TURNS_KNOWN_NS);
  }
  bool ours = now_ns >= turns->distrust_until_ns;
  set_ticket(turns, 0, now_ns);
  claim_release(&turns->lock);
  return ours;
}
