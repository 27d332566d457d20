#include "turns.h"

#include "abi.h"

#include <string.h>

/* Between looks at the clock while we wait: a wake-up may be lost with its sender. */
#define LONGEST_LOOK_NS 2000000LL
#define FORGOTTEN_NS 50000000LL /* a waiter that has not looked for this long does not count */
/* How old what we have seen may be, and what others see of us: a look takes about a microsecond. */
#define LATELY_NS 200000LL
#define LATELY_ALONE_NS 5000000LL
#define MOST_AWAKE_LOOKS 1000 /* in one wait: about two milliseconds */
#define FIRST_SLOTS 8         /* read together with the head */

static int64_t min(int64_t a, int64_t b) {
  return a < b ? a : b;
}

/* ---- the file -------------------------------------------------------------------------------------------------- */

static size_t place_of(int slot) {
  return offsetof(struct turns_file, slots) + (size_t)slot * sizeof(struct turns_slot);
}

int turns_slots_used(const struct turns *turns) {
  uint32_t used = turns->seen.head.slots_used;
  return used < TURNS_SLOTS ? (int)used : TURNS_SLOTS;
}

static void read_file(struct turns *turns, void *to, size_t size, size_t at) {
  if (!turns->system->read(turns->file, to, size, at))
    memset(to, 0, size);
}

static void publish(struct turns *turns, int64_t now_ns) {
  turns->system->write(turns->file, &turns->own, TURNS_OWN_BYTES, place_of(turns->slot));
  turns->published_ns = now_ns;
  turns->said_at_work = turns->own.at_work == 1;
  turns->said_seen_ns = turns->own.seen_ns;
}

/* The head as `change` leaves it, unless it is not changed. Under the lock, so that nobody's change is lost. */
static bool change_head(struct turns *turns, bool (*change)(struct turns_head *head, const void *how),
                        const void *how) {
  const struct turns_system *system = turns->system;
  if (!system->lock(turns->file))
    return false;
  struct turns_head head;
  read_file(turns, &head, sizeof head, 0);
  bool changed = change(&head, how);
  if (changed)
    system->write(turns->file, &head, sizeof head, 0);
  system->unlock(turns->file);
  return changed;
}

static bool make_room(struct turns_head *head, const void *how) {
  uint32_t used = (uint32_t)*(const int *)how + 1;
  bool grows = head->slots_used < used;
  if (grows)
    head->slots_used = used;
  return grows;
}

static uint64_t next_turn(uint64_t turn, int holder) {
  return ((turn >> 16) + 1) << 16 | (uint64_t)(holder + 1);
}

static int holder_of(uint64_t turn) {
  return (int)(turn & 0xffff) - 1;
}

struct hand_over {
  uint64_t from;
  int to; /* -1: nobody */
  int64_t now_ns;
};

static bool hand_turn_over(struct turns_head *head, const void *how) {
  const struct hand_over *hand_over = how;
  if (head->turn != hand_over->from)
    return false;
  head->turn = next_turn(head->turn, hand_over->to);
  if (hand_over->to < 0) {
    head->free_since_ns = hand_over->now_ns;
    head->wake++;
  }
  return true;
}

static bool is_ours(struct turns *turns) {
  read_file(turns, &turns->seen.head.turn, sizeof turns->seen.head.turn, 0);
  return holder_of(turns->seen.head.turn) == turns->slot;
}

/* ---- who is there ---------------------------------------------------------------------------------------------- */

static bool seen_within(const struct turns_slot *slot, int64_t now_ns, int64_t age_ns) {
  return slot->seen_ns > now_ns - age_ns && slot->seen_ns <= now_ns + age_ns;
}

static bool waits(const struct turns_slot *slot, int64_t now_ns) {
  return slot->ticket != 0 && seen_within(slot, now_ns, FORGOTTEN_NS);
}

/* Who has waited for long has the highest priority. */
static uint32_t priority_of(const struct turns_slot *slot, int64_t now_ns) {
  bool waits_long = slot->ticket != 0 && now_ns - slot->ticket > TURNS_STARVED_NS;
  return waits_long ? VGPU_PRIORITY_HIGH : slot->terms.priority;
}

static bool is_another_tenant(const struct turns *turns, const struct turns_slot *slot) {
  return slot->terms.tenant != turns->own.terms.tenant;
}

/* As it says itself; or as was said on its behalf, until it was to be idle or is heard again. */
static bool is_stuck(const struct turns_slot *slot, int64_t now_ns) {
  return slot->stuck == 1 || (slot->overstayed_ns > slot->seen_ns && now_ns < slot->idle_at_ns);
}

static bool is_silent(const struct turns_slot *slot, int64_t now_ns) {
  return slot->at_work == 1 && now_ns - slot->seen_ns > TURNS_SILENT_NS;
}

static void count_those_at_work(struct turns *turns, int64_t now_ns) {
  turns->stuck = turns->silent = 0;
  for (int i = 0; i < turns_slots_used(turns); i++) {
    const struct turns_slot *slot = &turns->seen.slots[i];
    bool stuck = is_stuck(slot, now_ns), silent = !stuck && is_silent(slot, now_ns);
    if (i == turns->slot || !(stuck || silent) || !is_another_tenant(turns, slot) ||
        !turns->system->is_held(turns->file, i))
      continue;
    turns->stuck += stuck;
    turns->silent += silent;
  }
}

static void look(struct turns *turns, int64_t now_ns) {
  read_file(turns, &turns->seen, place_of(FIRST_SLOTS), 0);
  int more = turns_slots_used(turns) - FIRST_SLOTS;
  if (more > 0)
    read_file(turns, &turns->seen.slots[FIRST_SLOTS], (size_t)more * sizeof(struct turns_slot), place_of(FIRST_SLOTS));
  if (turns_slots_used(turns) <= turns->slot) { /* somebody has cut us off */
    change_head(turns, make_room, &turns->slot);
    publish(turns, now_ns);
  }
  turns->looked_ns = now_ns;
  count_those_at_work(turns, now_ns);
  turns->company = turns->stuck + turns->silent > 0;
  for (int i = 0; i < turns_slots_used(turns); i++)
    turns->company |= i != turns->slot && seen_within(&turns->seen.slots[i], now_ns, TURNS_ACTIVE_NS);
}

int64_t turns_begin_look(struct turns *turns) {
  pthread_mutex_lock(&turns->lock);
  int64_t now_ns = turns->system->now_ns();
  if (now_ns - turns->looked_ns >= (turns->company ? LATELY_NS : LATELY_ALONE_NS))
    look(turns, now_ns);
  return now_ns;
}

void turns_end_look(struct turns *turns) {
  pthread_mutex_unlock(&turns->lock);
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
    found = i != turns->slot && seen_within(slot, now_ns, TURNS_ACTIVE_NS) && is_another_tenant(turns, slot);
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

uint32_t turns_count_silent(struct turns *turns) {
  turns_begin_look(turns);
  uint32_t count = turns->silent;
  turns_end_look(turns);
  return count;
}

/* ---- the turn --------------------------------------------------------------------------------------------------- */

bool turns_is_ours(struct turns *turns) {
  pthread_mutex_lock(&turns->lock);
  bool ours = is_ours(turns);
  pthread_mutex_unlock(&turns->lock);
  return ours;
}

/* For those of lower priority nobody makes way. */
static bool another_waits(const struct turns *turns, int64_t now_ns) {
  for (int i = 0; i < turns_slots_used(turns); i++) {
    const struct turns_slot *slot = &turns->seen.slots[i];
    if (i != turns->slot && waits(slot, now_ns) && priority_of(slot, now_ns) <= turns->own.terms.priority)
      return true;
  }
  return false;
}

/* Those in the queue before us. */
static int rank(const struct turns *turns, int64_t now_ns) {
  uint32_t priority = priority_of(&turns->own, now_ns);
  int before = 0;
  for (int i = 0; i < turns_slots_used(turns); i++) {
    const struct turns_slot *slot = &turns->seen.slots[i];
    if (i == turns->slot || !waits(slot, now_ns))
      continue;
    uint32_t others = priority_of(slot, now_ns);
    bool longer = slot->ticket < turns->own.ticket || (slot->ticket == turns->own.ticket && i < turns->slot);
    before += others < priority || (others == priority && longer);
  }
  return before;
}

/* When the turn may be taken from its holder. */
static int64_t takeable_at_ns(const struct turns *turns, int holder, int64_t now_ns) {
  if (holder >= turns_slots_used(turns))
    return now_ns;
  const struct turns_slot *slot = &turns->seen.slots[holder];
  int64_t idle_at_ns = min(slot->idle_at_ns, now_ns + TURNS_PATIENCE_NS);
  int64_t slice_end_ns = min(slot->slice_end_ns, now_ns + TURNS_SLICE_NS);
  return min(idle_at_ns + TURNS_GRACE_NS, slice_end_ns + TURNS_OVERSTAY_NS);
}

bool turns_are_wanted(struct turns *turns) {
  int64_t now_ns = turns_begin_look(turns);
  int holder = holder_of(turns->seen.head.turn);
  bool wanted = false;
  for (int i = 0; i < turns_slots_used(turns) && !wanted; i++) {
    const struct turns_slot *slot = &turns->seen.slots[i];
    bool wants = waits(slot, now_ns) || (i == holder && takeable_at_ns(turns, i, now_ns) > now_ns);
    wanted = wants && i != turns->slot && is_another_tenant(turns, slot) &&
             priority_of(slot, now_ns) <= turns->own.terms.priority;
  }
  turns_end_look(turns);
  return wanted;
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
  size_t place = place_of(holder) + offsetof(struct turns_slot, overstayed_ns);
  turns->system->write(turns->file, &now_ns, sizeof now_ns, place);
}

/* Takes the turn, or says until when there is nothing to be done about it. */
static bool try_take(struct turns *turns, struct sight *sight, int64_t now_ns, int64_t *look_again_ns) {
  uint64_t turn = turns->seen.head.turn;
  int64_t at_last_ns = longest_turn_end_ns(sight, turn, now_ns);
  int holder = holder_of(turn);
  int64_t from_ns =
      holder < 0 ? min(turns->seen.head.free_since_ns, now_ns) : min(takeable_at_ns(turns, holder, now_ns), at_last_ns);
  from_ns += rank(turns, now_ns) * TURNS_RANK_NS;
  if (from_ns > now_ns) {
    *look_again_ns = from_ns;
    return false;
  }
  bool is_busy =
      holder >= 0 && holder < turns_slots_used(turns) && turns->seen.slots[holder].idle_at_ns > now_ns - TURNS_GRACE_NS;
  turns->own.slice_end_ns = now_ns + TURNS_SLICE_NS;
  turns->own.idle_at_ns = now_ns + TURNS_GRACE_NS;
  publish(turns, now_ns);
  *look_again_ns = now_ns;
  const struct hand_over hand_over = {turn, turns->slot, now_ns};
  if (!change_head(turns, hand_turn_over, &hand_over))
    return false;
  if (is_busy)
    note_overstay(turns, holder, now_ns);
  return true;
}

/* When the holder is expected to pass its turn: as it has announced, or when its slice ends. */
static int64_t expected_pass_ns(const struct turns *turns) {
  int holder = holder_of(turns->seen.head.turn);
  if (holder < 0 || holder >= turns_slots_used(turns))
    return 0;
  const struct turns_slot *slot = &turns->seen.slots[holder];
  return slot->passes_at_ns > slot->slice_end_ns - TURNS_SLICE_NS ? slot->passes_at_ns : slot->slice_end_ns;
}

/* Until when to sleep, since nothing can be done: not through the moment at which our turn is expected, since to be
 * woken takes longer than to look. */
static int64_t sleep_until_ns(const struct turns *turns, int64_t now_ns, int64_t until_ns) {
  int64_t early_ns = expected_pass_ns(turns) - TURNS_AWAKE_NS;
  bool is_next = rank(turns, now_ns) == 0;
  if (is_next && now_ns >= early_ns && now_ns < early_ns + 2 * TURNS_AWAKE_NS)
    return now_ns;
  return is_next && now_ns < early_ns ? min(until_ns, early_ns) : until_ns;
}

static void sleep_or_stay_awake(struct turns *turns, struct sight *sight, uint32_t wake, int64_t until_ns) {
  const struct turns_system *system = turns->system;
  int64_t now_ns = system->now_ns();
  if (until_ns > now_ns)
    system->wait(turns->file, wake, min(until_ns - now_ns, LONGEST_LOOK_NS));
  bool slept = system->now_ns() - now_ns > TURNS_AWAKE_NS / 4;
  if (!slept && ++sight->awake_looks > MOST_AWAKE_LOOKS)
    system->sleep_ns(TURNS_AWAKE_NS);
}

enum taking { TAKEN, NOT_YET, GIVEN_UP };

/* With the lock held. */
static enum taking take_now(struct turns *turns, struct sight *sight, int64_t give_up_ns, int64_t *until_ns) {
  int64_t now_ns = turns->system->now_ns();
  turns->own.seen_ns = now_ns;
  look(turns, now_ns);
  if (holder_of(turns->seen.head.turn) == turns->slot || try_take(turns, sight, now_ns, until_ns))
    return TAKEN;
  if (now_ns >= give_up_ns)
    return GIVEN_UP;
  if (now_ns - turns->published_ns >= LATELY_NS)
    publish(turns, now_ns);
  *until_ns = *until_ns > now_ns ? sleep_until_ns(turns, now_ns, *until_ns) : now_ns;
  return NOT_YET;
}

/* Threads of one process share its slot and its ticket. */
static bool queue(struct turns *turns, int64_t now_ns) {
  bool trusts = now_ns >= turns->distrust_until_ns;
  if (trusts && turns->own.ticket == 0) {
    turns->own.ticket = now_ns;
    turns->own.seen_ns = now_ns;
    publish(turns, now_ns);
  }
  return trusts;
}

static void leave_queue(struct turns *turns, bool ours) {
  int64_t now_ns = turns->system->now_ns();
  turns->own.ticket = 0;
  publish(turns, now_ns);
  if (!ours)
    turns->distrust_until_ns = now_ns + TURNS_DISTRUST_NS;
}

bool turns_take(struct turns *turns) {
  int64_t began_ns = turns->system->now_ns(), until_ns = began_ns;
  struct sight sight = {.since_ns = began_ns};
  enum taking taking = NOT_YET;
  pthread_mutex_lock(&turns->lock);
  bool trusts = queue(turns, began_ns), ours = !trusts && is_ours(turns);
  while (trusts && (taking = take_now(turns, &sight, began_ns + TURNS_PATIENCE_NS, &until_ns)) == NOT_YET) {
    uint32_t wake = turns->seen.head.wake;
    pthread_mutex_unlock(&turns->lock);
    sleep_or_stay_awake(turns, &sight, wake, until_ns);
    pthread_mutex_lock(&turns->lock);
  }
  if (trusts)
    leave_queue(turns, taking == TAKEN);
  pthread_mutex_unlock(&turns->lock);
  return ours || taking == TAKEN;
}

bool turns_must_pass(struct turns *turns, int64_t in_flight_ns) {
  pthread_mutex_lock(&turns->lock);
  int64_t now_ns = turns->system->now_ns();
  bool used_up = now_ns + in_flight_ns >= turns->own.slice_end_ns && is_ours(turns);
  bool must = false;
  if (used_up) {
    look(turns, now_ns);
    must = another_waits(turns, now_ns);
  }
  if (used_up && !must) {
    turns->own.slice_end_ns = now_ns + TURNS_SLICE_NS;
    publish(turns, now_ns);
  }
  pthread_mutex_unlock(&turns->lock);
  return must;
}

void turns_pass(struct turns *turns, bool drained) {
  pthread_mutex_lock(&turns->lock);
  bool passed = false;
  if (drained && turns->own.at_work == 1) {
    turns->own.at_work = 0;
    publish(turns, turns->system->now_ns());
  }
  if (is_ours(turns)) {
    const struct hand_over hand_over = {turns->seen.head.turn, -1, turns->system->now_ns()};
    passed = change_head(turns, hand_turn_over, &hand_over);
  }
  pthread_mutex_unlock(&turns->lock);
  if (passed)
    turns->system->wake_all(turns->file);
}

/* ---- what we say of ourselves ----------------------------------------------------------------------------------- */

void turns_begin(struct turns *turns, const struct turns_system *system, void *file, int slot) {
  *turns = (struct turns){.system = system, .file = file, .slot = slot};
  pthread_mutex_init(&turns->lock, NULL);
  struct turns_slot fresh = {0};
  system->write(file, &fresh, sizeof fresh, place_of(slot));
  change_head(turns, make_room, &slot);
}

void turns_note_presence(struct turns *turns) {
  pthread_mutex_lock(&turns->lock);
  turns->own.seen_ns = turns->system->now_ns();
  if (turns->own.seen_ns - turns->said_seen_ns >= LATELY_ALONE_NS)
    publish(turns, turns->own.seen_ns);
  pthread_mutex_unlock(&turns->lock);
}

void turns_announce_pass(struct turns *turns, int64_t at_ns) {
  pthread_mutex_lock(&turns->lock);
  turns->own.passes_at_ns = at_ns;
  publish(turns, turns->system->now_ns());
  pthread_mutex_unlock(&turns->lock);
}

/* Others see a little more than we expect, and need not be told of every launch. */
void turns_note_activity(struct turns *turns, int64_t idle_at_ns) {
  pthread_mutex_lock(&turns->lock);
  int64_t now_ns = turns->system->now_ns();
  bool known = turns->own.at_work == 1 && idle_at_ns <= turns->own.idle_at_ns &&
               idle_at_ns > turns->own.idle_at_ns - 2 * LATELY_NS;
  int64_t lately_ns = !turns->company ? LATELY_ALONE_NS : known ? TURNS_SILENT_NS / 4 : 0;
  turns->own.seen_ns = now_ns;
  turns->own.at_work = 1;
  if (!known)
    turns->own.idle_at_ns = idle_at_ns + LATELY_NS;
  if (now_ns - turns->published_ns >= lately_ns)
    publish(turns, now_ns);
  pthread_mutex_unlock(&turns->lock);
}

/* Told rarely where that comes after each launch: who has said that it is at work, and then nothing, may be believed to
 * be so. */
void turns_note_idleness(struct turns *turns) {
  pthread_mutex_lock(&turns->lock);
  int64_t now_ns = turns->system->now_ns();
  turns->own.at_work = 0;
  turns->own.idle_at_ns = min(turns->own.idle_at_ns, now_ns);
  if (turns->said_at_work && now_ns - turns->published_ns >= LATELY_NS)
    publish(turns, now_ns);
  pthread_mutex_unlock(&turns->lock);
}

void turns_set_stuck(struct turns *turns, bool stuck) {
  pthread_mutex_lock(&turns->lock);
  if (turns->own.stuck != stuck) {
    turns->own.stuck = stuck;
    publish(turns, turns->system->now_ns());
  }
  pthread_mutex_unlock(&turns->lock);
}

void turns_set_terms(struct turns *turns, const struct turns_terms *terms) {
  pthread_mutex_lock(&turns->lock);
  if (memcmp(&turns->own.terms, terms, sizeof *terms) != 0) {
    turns->own.terms = *terms;
    publish(turns, turns->system->now_ns());
  }
  pthread_mutex_unlock(&turns->lock);
}
