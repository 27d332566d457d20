/* Waiting for the turn, taking it, and passing it. */
#include "turns_parts.h"

/* Between looks at the clock while we wait: a wake-up may be lost with its sender. */
#define LONGEST_LOOK_NS 2000000LL
#define MOST_AWAKE_LOOKS 1000 /* in one wait: about two milliseconds */

bool turns_is_ours(struct turns *turns) {
  claim_take(&turns->lock);
  bool ours = turns_know_ours(turns, turns->system->now_ns());
  claim_release(&turns->lock);
  return ours;
}

/* A wait for the turn. What its holder says of itself need not be true; nor that it is to pass it at any moment, again
 * and again. */
struct sight {
  uint64_t turn;
  int64_t since_ns;
  int awake_looks;
};

static int64_t longest_turn_end_ns(struct sight *sight, uint64_t turn, int64_t now_ns) {
  if (sight->turn != turn) {
    sight->turn = turn;
    sight->since_ns = now_ns;
  }
  return sight->since_ns + TURNS_SLICE_NS + TURNS_OVERSTAY_NS;
}

static void note_overstay(struct turns *turns, int holder, int64_t now_ns) {
  size_t place = turns_place_of(holder) + offsetof(struct turns_slot, overstayed_ns);
  turns->system->write(turns->file, &now_ns, sizeof now_ns, place);
}

/* A program whose steps take as long as its slices would have the same part of them first in each, and lose by it each
 * time, if that is one for which its host takes long. Multiples of the golden ratio are spread evenly, so that all get
 * as much. */
static int64_t next_slice_ns(struct turns *turns) {
  uint32_t part = ++turns->slices * 2654435769U;
  return TURNS_SLICE_NS - (int64_t)((uint64_t)part * TURNS_SHORTER_NS >> 32);
}

/* Takes the turn, or says until when there is nothing to be done about it. */
static bool try_take(struct turns *turns, struct sight *sight, int64_t now_ns, int64_t *look_again_ns) {
  uint64_t turn = turns->seen.head.turn;
  int64_t at_last_ns = longest_turn_end_ns(sight, turn, now_ns);
  int holder = turns_holder_of(turn);
  int64_t from_ns = holder < 0 ? turns_min(turns->seen.head.free_since_ns, now_ns)
                               : turns_min(turns_takeable_at_ns(turns, holder, now_ns), at_last_ns);
  from_ns += turns_rank(turns, now_ns) * TURNS_RANK_NS;
  if (from_ns > now_ns) {
    *look_again_ns = from_ns;
    return false;
  }
  bool is_busy =
      holder >= 0 && holder < turns_slots_used(turns) && turns->seen.slots[holder].idle_at_ns > now_ns - TURNS_GRACE_NS;
  turns->own.slice_end_ns = now_ns + next_slice_ns(turns);
  turns->own.passes_at_ns = 0; /* was of an earlier one */
  turns->own.idle_at_ns = now_ns + TURNS_GRACE_NS;
  turns_publish(turns, now_ns);
  *look_again_ns = now_ns;
  if (!turns_hand_over(turns, turns->slot, now_ns))
    return false;
  if (is_busy)
    note_overstay(turns, holder, now_ns);
  return true;
}

/* Until when to sleep, since nothing can be done: not through the moment at which our turn is expected, since to be
 * woken takes longer than to look. */
static int64_t sleep_until_ns(const struct turns *turns, int64_t now_ns, int64_t until_ns) {
  int64_t early_ns = turns_expected_pass_ns(turns) - TURNS_AWAKE_NS;
  bool is_next = turns_rank(turns, now_ns) == 0;
  if (is_next && now_ns >= early_ns && now_ns - early_ns < 2 * TURNS_AWAKE_NS)
    return now_ns;
  return is_next && now_ns < early_ns ? turns_min(until_ns, early_ns) : until_ns;
}

static void sleep_or_stay_awake(struct turns *turns, struct sight *sight, uint32_t wake, int64_t until_ns) {
  const struct turns_system *system = turns->system;
  int64_t now_ns = system->now_ns();
  if (until_ns > now_ns)
    system->wait(turns->file, wake, turns_min(until_ns - now_ns, LONGEST_LOOK_NS));
  bool slept = system->now_ns() - now_ns > TURNS_AWAKE_NS / 4;
  if (!slept && ++sight->awake_looks > MOST_AWAKE_LOOKS)
    system->sleep_ns(TURNS_AWAKE_NS);
}

enum taking { TAKEN, NOT_YET, GIVEN_UP };

/* With the lock held. */
static enum taking take_now(struct turns *turns, struct sight *sight, int64_t give_up_ns, int64_t *until_ns) {
  int64_t now_ns = turns->system->now_ns();
  turns->own.seen_ns = now_ns;
  turns_look(turns, now_ns);
  if (turns_holder_of(turns->seen.head.turn) == turns->slot || try_take(turns, sight, now_ns, until_ns))
    return TAKEN;
  if (now_ns >= give_up_ns)
    return GIVEN_UP;
  if (now_ns - turns->published_ns >= TURNS_LATELY_NS)
    turns_publish(turns, now_ns);
  *until_ns = *until_ns > now_ns ? sleep_until_ns(turns, now_ns, *until_ns) : now_ns;
  return NOT_YET;
}

/* Threads of one process share its slot and its ticket. */
static bool queue(struct turns *turns, int64_t now_ns) {
  bool trusts = now_ns >= turns->distrust_until_ns;
  if (trusts && turns->own.ticket == 0) {
    turns->own.ticket = now_ns;
    turns->own.seen_ns = now_ns;
    turns_publish(turns, now_ns);
  }
  return trusts;
}

static void leave_queue(struct turns *turns, bool ours) {
  int64_t now_ns = turns->system->now_ns();
  turns->own.ticket = 0;
  turns_publish(turns, now_ns);
  if (!ours)
    turns->distrust_until_ns = now_ns + TURNS_DISTRUST_NS;
}

bool turns_take(struct turns *turns) {
  int64_t began_ns = turns->system->now_ns(), until_ns = began_ns;
  struct sight sight = {.since_ns = began_ns};
  enum taking taking = NOT_YET;
  claim_take(&turns->lock);
  bool trusts = queue(turns, began_ns), ours = !trusts && turns_check_ours(turns);
  while (trusts && (taking = take_now(turns, &sight, began_ns + TURNS_PATIENCE_NS, &until_ns)) == NOT_YET) {
    uint32_t wake = turns->seen.head.wake;
    claim_release(&turns->lock);
    sleep_or_stay_awake(turns, &sight, wake, until_ns);
    claim_take(&turns->lock);
  }
  if (trusts)
    leave_queue(turns, taking == TAKEN);
  claim_release(&turns->lock);
  return ours || taking == TAKEN;
}

bool turns_must_pass(struct turns *turns, int64_t in_flight_ns) {
  claim_take(&turns->lock);
  int64_t now_ns = turns->system->now_ns();
  bool used_up = now_ns + in_flight_ns >= turns->own.slice_end_ns && turns_check_ours(turns);
  bool must = false;
  if (used_up) {
    turns_look(turns, now_ns);
    must = turns_another_waits(turns, now_ns);
  }
  if (used_up && !must) {
    turns->own.slice_end_ns = now_ns + TURNS_SLICE_NS;
    turns_publish(turns, now_ns);
  }
  claim_release(&turns->lock);
  return must;
}

void turns_pass(struct turns *turns, bool drained) {
  claim_take(&turns->lock);
  bool passed = false;
  if (drained && turns->own.at_work == 1) {
    turns->own.at_work = 0;
    turns_publish(turns, turns->system->now_ns());
  }
  if (turns_check_ours(turns))
    passed = turns_hand_over(turns, -1, turns->system->now_ns());
  claim_release(&turns->lock);
  if (passed)
    turns->system->wake_all(turns->file);
}
