#include "turns/turns.h"

#include "base/bucket.h"
#include "base/claim.h"

#include <string.h>

/* Slices end at the same instants on all GPUs, so that programs whose kernels wait for each other across them find both
 * at once. One that is about to end is not worth a hand-over. */
static int64_t slice_number(int64_t now_ns) {
  return (now_ns + TURNS_SLICE_NS / 2) / TURNS_SLICE_NS + 1;
}

static int64_t slice_end_ns(int64_t now_ns) {
  return slice_number(now_ns) * TURNS_SLICE_NS;
}

static void set_end(struct turns *turns, int64_t now_ns, int64_t end_ns) {
  turns->own.turn_ends_ns = end_ns;
  turns->own.seen_ns = now_ns;
  turns->system->write(turns->files, turns->slot, &turns->own);
}

static void set_ticket(struct turns *turns, int64_t ticket_ns, int64_t now_ns) {
  bool is_old = turns->own.ticket_ns != ticket_ns || now_ns - turns->own.seen_ns >= TURNS_KNOWN_NS;
  turns->own.ticket_ns = ticket_ns;
  if (is_old)
    set_end(turns, now_ns, turns->own.turn_ends_ns);
}

void turns_begin(struct turns *turns, const struct turns_system *system, void *files, int slot) {
  *turns = (struct turns){.system = system, .files = files, .slot = slot, .tenants_count = 1};
  set_end(turns, 0, 0);
}

void turns_note_presence(struct turns *turns) {
  claim_take(&turns->lock);
  set_ticket(turns, turns->own.ticket_ns, turns->system->now_ns());
  claim_release(&turns->lock);
}

/* ---- shares ------------------------------------------------------------------------------------------------------ */

static void count_in(struct turns_sums *sums, const struct turns_terms *terms, uint32_t times) {
  if (terms->percent >= VGPU_NO_SM_LIMIT)
    sums->unlimited += times;
  else
    *(terms->policy == VGPU_SM_BURST ? &sums->burst : &sums->hard) += times * terms->percent;
}

static bool is_hard(const struct turns_terms *terms) {
  return terms->percent < VGPU_NO_SM_LIMIT && terms->policy != VGPU_SM_BURST;
}

static uint32_t share_percent(const struct turns_terms *terms, struct turns_sums others) {
  uint32_t weight = terms->percent > 0 ? terms->percent : 1;
  if (is_hard(terms))
    return weight;
  uint32_t limited = others.hard + others.burst, share = weight;
  if (weight >= VGPU_NO_SM_LIMIT)
    share = (limited < 100 ? 100 - limited : 0) / (others.unlimited + 1);
  else if (weight + limited > 100)
    share = weight * 100 / (weight + limited);
  else if (others.unlimited == 0)
    share = weight * (100 - others.hard) / (weight + others.burst);
  return share > 0 ? share : 1;
}

/* For how much of the time another tenant may hold the turn while we wait: somewhat more than what falls to it, since
 * it holds the turn between its launches, too; but never all. */
static uint32_t most_percent(const struct turns *turns, const struct turns_tenant *tenant) {
  struct turns_sums others = turns->others;
  if (tenant->terms.priority <= turns->terms.priority)
    count_in(&others, &tenant->terms, (uint32_t)-1);
  if (turns->terms.priority <= tenant->terms.priority)
    count_in(&others, &turns->terms, 1);
  uint32_t share = share_percent(&tenant->terms, others);
  return (uint32_t)min(5 * share / 4, (3 * share + 100) / 4);
}

/* Always where it is our own, which is not charged. */
static bool is_believed(const struct turns *turns, const struct turns_tenant *tenant, int64_t now_ns) {
  return tenant->held_zero_at_ns <= now_ns + bucket_wall_ns(TURNS_LONGEST_NS / 2, most_percent(turns, tenant));
}

/* Charges each tenant that held the turn while we waited. */
static void charge_holders(struct turns *turns, int64_t since_ns, int64_t now_ns, int64_t paid_ns) {
  for (int i = 1; i < turns->tenants_count; i++) {
    struct turns_tenant *tenant = &turns->tenants[i];
    if (tenant->processes > 0 && tenant->ends_ns > since_ns)
      tenant->held_zero_at_ns =
          bucket_pay(tenant->held_zero_at_ns, paid_ns, now_ns, now_ns, most_percent(turns, tenant));
  }
}

/* ---- the view of the others -------------------------------------------------------------------------------------- */

/* Any number may stand in a file: nothing is added to it that has not been bounded. */
static bool is_recent(int64_t at_ns, int64_t now_ns) {
  return at_ns > now_ns - TURNS_PATIENCE_NS && at_ns <= now_ns + TURNS_PATIENCE_NS;
}

static uint32_t priority_of(int64_t ticket_ns, const struct turns_terms *terms, int64_t now_ns) {
  return ticket_ns != 0 && ticket_ns < now_ns - TURNS_LONGEST_NS ? VGPU_PRIORITY_HIGH : terms->priority;
}

/* A lease ends after twice the time that its holder expects to need. */
static int64_t passes_at_ns(const struct turns_slot *slot) {
  int64_t idle_at_ns = slot->seen_ns + (slot->turn_ends_ns - slot->seen_ns) / 2 - TURNS_GRACE_NS;
  return slot->slice_ends_ns > slot->seen_ns ? min(idle_at_ns, slot->slice_ends_ns) : idle_at_ns;
}

static void read_tenant(struct turns *turns, int number, int64_t now_ns) {
  struct turns_slot slots[TURNS_SLOTS];
  struct turns_tenant *tenant = &turns->tenants[number];
  int count = turns->system->read(turns->files, number, slots);
  tenant->processes = 0;
  tenant->ticket_ns = tenant->ends_ns = 0;
  for (int i = 0; i < count; i++) {
    const struct turns_slot *slot = &slots[i];
    if (!is_recent(slot->seen_ns, now_ns) || (number == 0 && i == turns->slot))
      continue;
    tenant->processes++;
    if (is_recent(slot->ticket_ns, now_ns) && (tenant->ticket_ns == 0 || slot->ticket_ns < tenant->ticket_ns)) {
      tenant->ticket_ns = slot->ticket_ns;
      tenant->ticket_slot = i;
    }
    if (slot->turn_ends_ns > tenant->ends_ns && slot->turn_ends_ns < now_ns + 2 * TURNS_LONGEST_NS) {
      tenant->ends_ns = slot->turn_ends_ns;
      tenant->passes_at_ns = passes_at_ns(slot);
    }
  }
  bool starves = tenant->ticket_ns != 0 && tenant->ticket_ns < now_ns - TURNS_LONGEST_NS;
  tenant->has_starved = starves || (tenant->has_starved && tenant->ends_ns > now_ns);
}

/* Tenants take turns in a circle, in the order of their numbers, and whose slice it is goes first: that is the same on
 * all GPUs on which they meet, and two processes of a tenant do not have what falls to two. */
static int64_t place_of(const struct turns *turns, const struct turns_tenant *tenant, int64_t now_ns) {
  int64_t count = 0, before = 0;
  for (int i = 0; i < turns->tenants_count; i++) {
    bool counts = i == 0 || turns->tenants[i].processes > 0;
    count += counts;
    before += counts && turns->tenants[i].id < tenant->id;
  }
  return (before + count - slice_number(now_ns) % count) % count;
}

/* Tells whether a waiting tenant goes before us. Without a ticket we have the turn. */
static bool goes_before_us(const struct turns *turns, const struct turns_tenant *tenant, int64_t now_ns) {
  const struct turns_slot *own = &turns->own;
  uint32_t theirs = priority_of(tenant->ticket_ns, &tenant->terms, now_ns);
  uint32_t ours = priority_of(own->ticket_ns, &turns->terms, now_ns);
  if (theirs != ours)
    return theirs < ours;
  int64_t their_place = place_of(turns, tenant, now_ns), place = place_of(turns, turns->tenants, now_ns);
  if (their_place != place)
    return their_place < place;
  int64_t longer_ns = (own->ticket_ns != 0 ? own->ticket_ns : now_ns) - tenant->ticket_ns;
  return longer_ns > 0 || (longer_ns == 0 && tenant->ticket_slot < turns->slot);
}

/* High priority does not wait for low priority: the GPU's own time-slicing lets it run beside that, until the holder
 * has seen it and its work has drained. But one that had starved has its slice. */
static bool is_waited_for(const struct turns *turns, const struct turns_tenant *tenant) {
  return tenant->terms.priority <= turns->terms.priority || tenant->has_starved;
}

static void add_to_view(struct turns *turns, const struct turns_tenant *tenant, int64_t now_ns) {
  struct turns_view *view = &turns->view;
  bool is_another_tenant = tenant != turns->tenants, waits = tenant->ticket_ns != 0;
  bool has_lease = tenant->ends_ns > now_ns && is_believed(turns, tenant, now_ns);
  bool has_turn = has_lease && is_waited_for(turns, tenant);
  view->company = true;
  view->siblings += is_another_tenant ? 0 : tenant->processes;
  view->another_tenant |= is_another_tenant;
  view->higher_priority |= tenant->terms.priority < turns->terms.priority;
  view->wanted |= is_another_tenant && (waits || has_turn) &&
                  priority_of(tenant->ticket_ns, &tenant->terms, now_ns) <= turns->terms.priority;
  view->higher_has_turn |= has_turn && tenant->terms.priority < turns->turn_priority;
  view->goes_before |= waits && goes_before_us(turns, tenant, now_ns);
  view->is_leased |= has_turn;
  view->is_contended |= has_lease && !has_turn;
  if ((has_turn || tenant->ends_ns <= now_ns) && tenant->ends_ns > view->free_at_ns) {
    view->free_at_ns = tenant->ends_ns;
    view->passes_at_ns = tenant->passes_at_ns;
  }
}

static void look_after(struct turns *turns, int64_t now_ns, int64_t interval_ns) {
  if (now_ns - turns->looked_ns < interval_ns)
    return;
  turns->tenants_count = turns->system->look(turns->files, turns->tenants, turns->tenants_count);
  turns->looked_ns = now_ns;
}

void turns_look(struct turns *turns) {
  claim_take(&turns->lock);
  look_after(turns, turns->system->now_ns(), TURNS_KNOWN_NS);
  claim_release(&turns->lock);
}

static void read_all(struct turns *turns, int64_t now_ns) {
  if (now_ns - turns->listed_ns >= TURNS_KNOWN_NS) {
    turns->tenants_count = turns->system->list(turns->files, turns->tenants, turns->tenants_count);
    turns->listed_ns = now_ns;
  }
  turns->refreshed_ns = now_ns;
  turns->view = (struct turns_view){.free_at_ns = turns->own.turn_ends_ns};
  turns->others = (struct turns_sums){0};
  turns->tenants[0].terms = turns->terms;
  for (int i = 0; i < turns->tenants_count; i++) {
    read_tenant(turns, i, now_ns);
    if (i > 0 && turns->tenants[i].processes > 0 && turns->tenants[i].terms.priority <= turns->terms.priority)
      count_in(&turns->others, &turns->tenants[i].terms, 1);
  }
  for (int i = 0; i < turns->tenants_count; i++)
    if (turns->tenants[i].processes > 0)
      add_to_view(turns, &turns->tenants[i], now_ns);
}

static void refresh(struct turns *turns, int64_t now_ns) {
  look_after(turns, now_ns, TURNS_LOOK_NS);
  read_all(turns, now_ns);
}

static int64_t refresh_if_due(struct turns *turns) {
  int64_t now_ns = turns->system->now_ns();
  if (now_ns - turns->refreshed_ns >= (turns->view.company ? TURNS_GRACE_NS : TURNS_KNOWN_NS))
    refresh(turns, now_ns);
  return now_ns;
}

struct turns_view turns_refresh(struct turns *turns) {
  claim_take(&turns->lock);
  refresh_if_due(turns);
  struct turns_view view = turns->view;
  claim_release(&turns->lock);
  return view;
}

uint32_t turns_share_percent(struct turns *turns, const struct turns_terms *terms) {
  claim_take(&turns->lock);
  turns->terms = *terms;
  if (!is_hard(terms))
    refresh_if_due(turns);
  uint32_t percent = share_percent(terms, turns->others);
  claim_release(&turns->lock);
  return percent;
}

/* ---- the own turn ------------------------------------------------------------------------------------------------ */

/* When two take it at once, the one that reads later sees the other. Nobody else takes it before our lease ends: so
 * the others are read only where that has ended by the time that the next one is written. To look for new ones may take
 * longer than the lease lasts. */
static bool lease_until(struct turns *turns, int64_t now_ns, int64_t end_ns) {
  int64_t ours_until_ns = turns->own.turn_ends_ns;
  set_end(turns, now_ns, min(end_ns, now_ns + TURNS_LONGEST_NS));
  if (turns->system->now_ns() < ours_until_ns)
    return true;
  read_all(turns, now_ns);
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

/* Others see in a lease when its holder expects to be idle: at half of it (passes_at_ns). */
void turns_note_drain(struct turns *turns, int64_t since_ns, int64_t idle_at_ns) {
  claim_take(&turns->lock);
  int64_t now_ns = turns->system->now_ns();
  if (now_ns < turns->own.turn_ends_ns)
    set_end(turns, since_ns, min(idle_at_ns + 2 * TURNS_GRACE_NS, now_ns + TURNS_LONGEST_NS));
  claim_release(&turns->lock);
}

void turns_pass(struct turns *turns) {
  claim_take(&turns->lock);
  int64_t now_ns = turns->system->now_ns();
  if (now_ns < turns->own.turn_ends_ns)
    set_end(turns, now_ns, now_ns);
  claim_release(&turns->lock);
}

bool turns_must_pass(struct turns *turns, int64_t in_flight_ns) {
  claim_take(&turns->lock);
  int64_t now_ns = refresh_if_due(turns);
  bool ours = now_ns < turns->own.turn_ends_ns, used_up = now_ns + in_flight_ns >= turns->own.slice_ends_ns;
  bool must = used_up ? turns->view.goes_before : turns->view.higher_has_turn;
  if (used_up && !must)
    turns->own.slice_ends_ns = slice_end_ns(now_ns); /* the next slice is ours, too */
  claim_release(&turns->lock);
  return ours && must;
}

/* Takes the turn, or says until when there is nothing to be done about it. */
static bool try_take(struct turns *turns, int64_t now_ns, int64_t *until_ns) {
  refresh(turns, now_ns);
  *until_ns = turns->view.free_at_ns + (turns->view.goes_before ? TURNS_GRACE_NS : 0);
  if (*until_ns > now_ns)
    return false;
  turns->own.slice_ends_ns = slice_end_ns(now_ns);
  turns->turn_priority = priority_of(turns->own.ticket_ns, &turns->terms, now_ns);
  return lease_until(turns, now_ns, now_ns + 2 * TURNS_GRACE_NS);
}

/* A turn may be passed before the lease ends, which wakes nobody. When that is expected, the next one stays awake,
 * since a thread that sleeps wakes up a tenth of a millisecond late. */
static int64_t time_to_sleep_ns(const struct turns *turns, int64_t now_ns, int64_t until_ns) {
  int64_t left_ns = until_ns - now_ns, to_pass_ns = turns->view.passes_at_ns - now_ns;
  bool is_next = !turns->view.goes_before;
  if (is_next && to_pass_ns < TURNS_GRACE_NS && to_pass_ns > -TURNS_GRACE_NS)
    return 0;
  if (is_next && to_pass_ns > 0)
    return max(min((to_pass_ns - TURNS_GRACE_NS) / 2, TURNS_KNOWN_NS), TURNS_GRACE_NS / 2);
  return left_ns > TURNS_GRACE_NS ? min(left_ns / 2, is_next ? TURNS_GRACE_NS : TURNS_KNOWN_NS) : left_ns;
}

/* Threads of one process share its slot and its ticket. The time for which the process was stopped is nobody's fault,
 * and takes no patience. */
void turns_take(struct turns *turns) {
  const struct turns_system *system = turns->system;
  int64_t now_ns = system->now_ns(), patience_ns = TURNS_PATIENCE_NS, until_ns;
  claim_take(&turns->lock);
  while (now_ns >= turns->own.turn_ends_ns) {
    set_ticket(turns, turns->own.ticket_ns != 0 ? turns->own.ticket_ns : now_ns, now_ns);
    if (try_take(turns, now_ns, &until_ns))
      break;
    int64_t began_ns = now_ns, sleep_ns = time_to_sleep_ns(turns, now_ns, until_ns);
    if (sleep_ns > 4 * TURNS_GRACE_NS)
      look_after(turns, now_ns, TURNS_KNOWN_NS);
    claim_release(&turns->lock);
    sleep_ns -= system->now_ns() - now_ns;
    if (sleep_ns > 0)
      system->sleep_ns(sleep_ns);
    claim_take(&turns->lock);
    now_ns = system->now_ns();
    int64_t waited_ns = min(now_ns - began_ns, 2 * TURNS_KNOWN_NS);
    patience_ns -= waited_ns;
    charge_holders(turns, began_ns, now_ns, patience_ns > 0 ? waited_ns : BUCKET_MOST_DEBT_NS);
  }
  set_ticket(turns, 0, now_ns);
  claim_release(&turns->lock);
}
