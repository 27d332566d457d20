/* The lease of the turn, the wait for it, and what a process says of itself. */
#include "turns_parts.h"

#include <string.h>

#define AWAKE_NS 100000LL /* the next one is awake so long before a turn should be passed: to wake takes half of it */
#define LONGEST_SLEEP_NS 2000000LL /* a lease that ends earlier than it said wakes nobody */

static int64_t min(int64_t a, int64_t b) {
  return a < b ? a : b;
}

static int64_t max(int64_t a, int64_t b) {
  return a > b ? a : b;
}

/* ---- our slot --------------------------------------------------------------------------------------------------- */

static void publish(struct turns *turns, int64_t now_ns) {
  turns->own.seen_ns = turns->published_ns = now_ns;
  turns->system->write(turns->file, &turns->own, sizeof turns->own,
                       offsetof(struct turns_file, slots) + (size_t)turns->slot * sizeof turns->own);
}

static void publish_if_old(struct turns *turns, int64_t now_ns) {
  if (now_ns - turns->published_ns >= TURNS_KNOWN_NS)
    publish(turns, now_ns);
}

static void set_ticket(struct turns *turns, int64_t ticket_ns, int64_t now_ns) {
  bool is_new = turns->own.ticket_ns != ticket_ns;
  turns->own.ticket_ns = ticket_ns;
  if (is_new)
    publish(turns, now_ns);
}

void turns_begin(struct turns *turns, const struct turns_system *system, void *file, int slot) {
  *turns = (struct turns){.system = system, .file = file, .slot = slot};
  publish(turns, 0);
}

void turns_set_terms(struct turns *turns, const struct turns_terms *terms) {
  claim_take(&turns->lock);
  bool are_new = memcmp(&turns->own.terms, terms, sizeof *terms) != 0;
  turns->own.terms = *terms;
  if (are_new)
    publish(turns, turns->system->now_ns());
  claim_release(&turns->lock);
}

void turns_note_presence(struct turns *turns) {
  claim_take(&turns->lock);
  publish_if_old(turns, turns->system->now_ns());
  claim_release(&turns->lock);
}

/* ---- the lease -------------------------------------------------------------------------------------------------- */

static void distrust(struct turns *turns) {
  turns->lease = 0;
  turns->distrust_until_ns = turns->system->now_ns() + TURNS_DISTRUST_NS;
}

/* Has the lease be that one, if it still is what we have seen: ours or, with slot -1, nobody's. It may be lost when it
 * has ended; not before. When the lock cannot be had, nothing is known. */
static bool change(struct turns *turns, uint64_t seen, uint64_t lease) {
  const struct turns_system *system = turns->system;
  struct turns_head head;
  if (!system->lock(turns->file))
    return false;
  bool same = system->read(turns->file, &head, sizeof head, 0) && head.lease == seen;
  if (same) {
    head.lease = lease;
    head.tenant = turns->own.terms.tenant;
    head.passes_ns = turns->passes_ns;
    head.wake += turns_holder_of(lease) < 0;
    system->write(turns->file, &head, sizeof head, 0);
  }
  system->unlock(turns->file);
  if (!same && turns->lease != 0 && system->now_ns() < turns_end_ns(turns->lease))
    distrust(turns);
  turns->lease = same && turns_holder_of(lease) >= 0 ? lease : 0;
  return same;
}

static bool lease_until(struct turns *turns, uint64_t seen, int64_t now_ns, int64_t end_ns) {
  turns->leased_ns = now_ns;
  return change(turns, seen, turns_lease(turns->slot, min(end_ns, now_ns + TURNS_LONGEST_NS)));
}

/* Until its end nobody takes it from us. */
static bool is_ours(struct turns *turns, int64_t now_ns) {
  return turns->lease != 0 && (now_ns < turns_end_ns(turns->lease) ||
                               lease_until(turns, turns->lease, now_ns, now_ns + TURNS_GRACE_NS + TURNS_LATELY_NS));
}

bool turns_is_ours(struct turns *turns) {
  claim_take(&turns->lock);
  bool ours = is_ours(turns, turns->system->now_ns());
  claim_release(&turns->lock);
  return ours;
}

/* Waking up takes longer than to look: so the next one is told. That does not shorten the lease, which ends when our
 * work may be done, and not when it should. */
void turns_announce_pass(struct turns *turns, int64_t at_ns) {
  claim_take(&turns->lock);
  int64_t later_ns = at_ns - turns->passes_ns, end_ns = turns_end_ns(turns->lease);
  turns->passes_ns = at_ns;
  if (turns->lease != 0 && (later_ns > AWAKE_NS || later_ns < -AWAKE_NS))
    lease_until(turns, turns->lease, turns->system->now_ns(), max(end_ns, at_ns + TURNS_GRACE_NS));
  claim_release(&turns->lock);
}

/* Told rarely where it comes after each launch. */
void turns_note_idleness(struct turns *turns) {
  claim_take(&turns->lock);
  int64_t now_ns = turns->system->now_ns();
  int64_t end_ns = now_ns + TURNS_GRACE_NS;
  if (turns->lease != 0 && turns_end_ns(turns->lease) > end_ns && now_ns - turns->leased_ns >= TURNS_LATELY_NS)
    lease_until(turns, turns->lease, now_ns, end_ns);
  claim_release(&turns->lock);
}

/* Put off by a little more, so that it need not be at each launch. Who launches waits no more, also when it left its
 * wait by siglongjmp. */
void turns_note_activity(struct turns *turns, int64_t idle_at_ns) {
  claim_take(&turns->lock);
  int64_t now_ns = turns->system->now_ns();
  set_ticket(turns, 0, now_ns);
  publish_if_old(turns, now_ns);
  if (turns->lease != 0 && idle_at_ns + TURNS_GRACE_NS > turns_end_ns(turns->lease))
    lease_until(turns, turns->lease, now_ns, idle_at_ns + TURNS_GRACE_NS + TURNS_LATELY_NS);
  claim_release(&turns->lock);
}

void turns_pass(struct turns *turns) {
  claim_take(&turns->lock);
  bool passed = turns->lease != 0 && change(turns, turns->lease, turns_lease(-1, turns->system->now_ns()));
  claim_release(&turns->lock);
  if (passed)
    turns->system->wake_all(turns->file);
}

/* ---- waiting ---------------------------------------------------------------------------------------------------- */

/* Takes the turn, or says until when there is nothing to be done about it. */
static bool try_take(struct turns *turns, int64_t now_ns, int64_t *until_ns) {
  const struct turns_head seen = turns->seen.head;
  int64_t end_ns = turns_end_ns(seen.lease), wait_ns = turns_rank(turns, now_ns) * TURNS_GRACE_NS;
  bool is_leased = turns_another_has_it(turns, now_ns);
  *until_ns = (is_leased || end_ns <= now_ns ? end_ns : 0) + wait_ns;
  if (*until_ns <= now_ns) {
    turns->slice_end_ns = turns->passes_ns = turns_slice_end_ns(now_ns);
    turns->was_starved = turns->own.ticket_ns < now_ns - TURNS_STARVED_NS;
    return lease_until(turns, seen.lease, now_ns, now_ns + TURNS_GRACE_NS + TURNS_LATELY_NS);
  }
  if (wait_ns == 0 && seen.passes_ns > now_ns - AWAKE_NS)
    *until_ns = min(*until_ns, seen.passes_ns - AWAKE_NS);
  return false;
}

/* Threads of one process share its slot and its ticket. */
bool turns_take(struct turns *turns) {
  const struct turns_system *system = turns->system;
  int64_t now_ns = system->now_ns(), give_up_ns = now_ns + TURNS_PATIENCE_NS, until_ns;
  claim_take(&turns->lock);
  while (now_ns >= turns->distrust_until_ns && !is_ours(turns, now_ns)) {
    set_ticket(turns, turns->own.ticket_ns != 0 ? turns->own.ticket_ns : now_ns, now_ns);
    publish_if_old(turns, now_ns);
    turns_look(turns, now_ns);
    if (try_take(turns, now_ns, &until_ns))
      break;
    if (now_ns >= give_up_ns)
      distrust(turns);
    uint32_t wake = turns->seen.head.wake;
    claim_release(&turns->lock);
    int64_t slept_at_ns = system->now_ns();
    if (until_ns > slept_at_ns)
      system->wait(turns->file, wake, min(until_ns - slept_at_ns, LONGEST_SLEEP_NS));
    claim_take(&turns->lock);
    now_ns = system->now_ns();
    give_up_ns += max(0, now_ns - slept_at_ns - TURNS_KNOWN_NS); /* that we were stopped is nobody's fault */
  }
  bool ours = turns->lease != 0;
  set_ticket(turns, 0, now_ns);
  claim_release(&turns->lock);
  return ours;
}
