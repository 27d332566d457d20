#include "turns.h"

#include "abi.h"
#include "clock.h"
#include "log.h"

#include <errno.h>
#include <linux/futex.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

/* Between looks at the clock while we wait: a wake-up may be lost with its sender. */
#define LONGEST_LOOK_NS 2000000LL
#define FORGOTTEN_NS 50000000LL /* a waiter that has not looked for this long does not count */

/* ---- the system's clock and futex ----------------------------------------------------------------------------- */

static void wait(uint32_t *word, uint32_t expected, int64_t duration_ns) {
  struct timespec duration = {.tv_sec = duration_ns / 1000000000, .tv_nsec = duration_ns % 1000000000};
  syscall(SYS_futex, word, FUTEX_WAIT, expected, &duration, NULL, 0);
}

static void wake_all(uint32_t *word) {
  syscall(SYS_futex, word, FUTEX_WAKE, __INT_MAX__, NULL, NULL, 0);
}

const struct turns_clock turns_system_clock = {clock_now_ns, wait, wake_all};

/* ---- who is there --------------------------------------------------------------------------------------------- */

static int64_t min(int64_t a, int64_t b) {
  return a < b ? a : b;
}

static struct turns_slot *own(const struct turns *turns) {
  return &turns->file->slots[turns->slot];
}

static int slots_used(const struct turns *turns) {
  uint32_t used = __atomic_load_n(&turns->file->slots_used, __ATOMIC_ACQUIRE);
  return used < TURNS_SLOTS ? (int)used : TURNS_SLOTS;
}

static bool seen_within(const struct turns_slot *slot, int64_t now_ns, int64_t age_ns) {
  int64_t seen_ns = __atomic_load_n(&slot->seen_ns, __ATOMIC_RELAXED);
  return seen_ns > now_ns - age_ns && seen_ns <= now_ns + age_ns;
}

static bool waits(const struct turns_slot *slot, int64_t now_ns) {
  return __atomic_load_n(&slot->ticket, __ATOMIC_RELAXED) != 0 && seen_within(slot, now_ns, FORGOTTEN_NS);
}

/* Who has waited for long has the highest priority. */
static uint32_t priority_of(const struct turns_slot *slot, int64_t now_ns) {
  bool waits_long = __atomic_load_n(&slot->ticket, __ATOMIC_RELAXED) != 0 &&
                    now_ns - __atomic_load_n(&slot->queued_ns, __ATOMIC_RELAXED) > TURNS_STARVED_NS;
  return waits_long ? VGPU_PRIORITY_HIGH : __atomic_load_n(&slot->terms.priority, __ATOMIC_RELAXED);
}

/* For those of lower priority nobody makes way. */
static bool another_waits(const struct turns *turns, int64_t now_ns) {
  uint32_t priority = __atomic_load_n(&own(turns)->terms.priority, __ATOMIC_RELAXED);
  for (int i = 0; i < slots_used(turns); i++) {
    const struct turns_slot *slot = &turns->file->slots[i];
    if (i != turns->slot && waits(slot, now_ns) && priority_of(slot, now_ns) <= priority)
      return true;
  }
  return false;
}

static bool is_another_tenant(const struct turns *turns, const struct turns_slot *slot) {
  return __atomic_load_n(&slot->terms.tenant, __ATOMIC_RELAXED) !=
         __atomic_load_n(&own(turns)->terms.tenant, __ATOMIC_RELAXED);
}

bool turns_have_company(const struct turns *turns) {
  int64_t now_ns = turns->clock->now_ns();
  for (int i = 0; i < slots_used(turns); i++)
    if (i != turns->slot && seen_within(&turns->file->slots[i], now_ns, TURNS_ACTIVE_NS))
      return true;
  return false;
}

bool turns_have_another_tenant(const struct turns *turns) {
  int64_t now_ns = turns->clock->now_ns();
  for (int i = 0; i < slots_used(turns); i++) {
    const struct turns_slot *slot = &turns->file->slots[i];
    if (i != turns->slot && seen_within(slot, now_ns, TURNS_ACTIVE_NS) && is_another_tenant(turns, slot))
      return true;
  }
  return false;
}

/* Those in the queue before us. */
static int rank(const struct turns *turns, int64_t now_ns) {
  uint64_t ticket = __atomic_load_n(&own(turns)->ticket, __ATOMIC_RELAXED);
  uint32_t priority = priority_of(own(turns), now_ns);
  int before = 0;
  for (int i = 0; i < slots_used(turns); i++) {
    const struct turns_slot *slot = &turns->file->slots[i];
    if (i == turns->slot || !waits(slot, now_ns))
      continue;
    uint32_t others = priority_of(slot, now_ns);
    if (others < priority || (others == priority && __atomic_load_n(&slot->ticket, __ATOMIC_RELAXED) < ticket))
      before++;
  }
  return before;
}

/* ---- the turn -------------------------------------------------------------------------------------------------- */

static int holder_of(uint64_t turn) {
  return (int)(turn & 0xffff) - 1;
}

static uint64_t next_turn(uint64_t turn, int holder) {
  return ((turn >> 16) + 1) << 16 | (uint64_t)(holder + 1);
}

static uint64_t load_turn(const struct turns *turns) {
  return __atomic_load_n(&turns->file->turn, __ATOMIC_ACQUIRE);
}

bool turns_is_ours(const struct turns *turns) {
  return holder_of(load_turn(turns)) == turns->slot;
}

/* When the turn may be taken from its holder. */
static int64_t takeable_at_ns(const struct turns *turns, int holder, int64_t now_ns) {
  if (holder >= TURNS_SLOTS)
    return now_ns;
  const struct turns_slot *slot = &turns->file->slots[holder];
  int64_t idle_at_ns = min(__atomic_load_n(&slot->idle_at_ns, __ATOMIC_RELAXED), now_ns + TURNS_PATIENCE_NS);
  int64_t slice_end_ns = min(__atomic_load_n(&slot->slice_end_ns, __ATOMIC_RELAXED), now_ns + TURNS_SLICE_NS);
  return min(idle_at_ns + TURNS_GRACE_NS, slice_end_ns + TURNS_OVERSTAY_NS);
}

static bool is_busy(const struct turns *turns, int holder, int64_t now_ns) {
  return holder >= 0 && holder < TURNS_SLOTS && holder != turns->slot &&
         __atomic_load_n(&turns->file->slots[holder].idle_at_ns, __ATOMIC_RELAXED) > now_ns - TURNS_GRACE_NS;
}

bool turns_are_wanted(const struct turns *turns) {
  int64_t now_ns = turns->clock->now_ns();
  uint32_t priority = __atomic_load_n(&own(turns)->terms.priority, __ATOMIC_RELAXED);
  int holder = holder_of(load_turn(turns));
  for (int i = 0; i < slots_used(turns); i++) {
    const struct turns_slot *slot = &turns->file->slots[i];
    bool wants = waits(slot, now_ns) || (i == holder && takeable_at_ns(turns, i, now_ns) > now_ns);
    if (wants && i != turns->slot && is_another_tenant(turns, slot) && priority_of(slot, now_ns) <= priority)
      return true;
  }
  return false;
}

/* A turn as whoever waits for it has seen it: what its holder says of itself need not be true. */
struct sight {
  uint64_t turn;
  int64_t since_ns;
};

static int64_t longest_turn_end_ns(struct sight *sight, uint64_t turn, int64_t now_ns) {
  if (sight->turn != turn)
    *sight = (struct sight){turn, now_ns};
  return sight->since_ns + TURNS_SLICE_NS + TURNS_OVERSTAY_NS;
}

/* Takes the turn, or says until when there is nothing to be done about it. */
static bool try_take(const struct turns *turns, struct sight *sight, int64_t now_ns, int64_t *look_again_ns) {
  uint64_t turn = load_turn(turns);
  int64_t at_last_ns = longest_turn_end_ns(sight, turn, now_ns);
  int holder = holder_of(turn);
  int64_t from_ns = holder < 0 ? min(__atomic_load_n(&turns->file->free_since_ns, __ATOMIC_RELAXED), now_ns)
                               : min(takeable_at_ns(turns, holder, now_ns), at_last_ns);
  from_ns += rank(turns, now_ns) * TURNS_RANK_NS;
  if (from_ns > now_ns) {
    *look_again_ns = from_ns;
    return false;
  }
  bool overstays = is_busy(turns, holder, now_ns);
  struct turns_slot *slot = own(turns);
  __atomic_store_n(&slot->slice_end_ns, now_ns + TURNS_SLICE_NS, __ATOMIC_RELAXED);
  __atomic_store_n(&slot->idle_at_ns, now_ns + TURNS_GRACE_NS, __ATOMIC_RELAXED);
  *look_again_ns = now_ns;
  if (!__atomic_compare_exchange_n(&turns->file->turn, &turn, next_turn(turn, turns->slot), false, __ATOMIC_ACQ_REL,
                                   __ATOMIC_ACQUIRE))
    return false;
  if (overstays)
    __atomic_store_n(&turns->file->slots[holder].stuck, 1, __ATOMIC_RELAXED);
  return true;
}

/* When the holder is expected to pass its turn: as it has announced, or when its slice ends. */
static int64_t expected_pass_ns(const struct turns *turns) {
  int holder = holder_of(load_turn(turns));
  if (holder < 0 || holder >= TURNS_SLOTS)
    return 0;
  const struct turns_slot *slot = &turns->file->slots[holder];
  int64_t slice_end_ns = __atomic_load_n(&slot->slice_end_ns, __ATOMIC_RELAXED);
  int64_t announced_ns = __atomic_load_n(&slot->passes_at_ns, __ATOMIC_RELAXED);
  return announced_ns > slice_end_ns - TURNS_SLICE_NS ? announced_ns : slice_end_ns;
}

/* Sleeps while nothing can be done, but not through the moment at which our turn is expected: to be woken takes longer
 * than to look. */
static void wait_for_change(const struct turns *turns, uint32_t wake, int64_t now_ns, int64_t until_ns) {
  int64_t early_ns = expected_pass_ns(turns) - TURNS_AWAKE_NS;
  bool is_next = rank(turns, now_ns) == 0;
  if (is_next && now_ns >= early_ns && now_ns < early_ns + 2 * TURNS_AWAKE_NS)
    return;
  if (is_next && now_ns < early_ns)
    until_ns = min(until_ns, early_ns);
  turns->clock->wait(&turns->file->wake, wake, min(until_ns - now_ns, LONGEST_LOOK_NS));
}

/* Threads of one process share its slot and its ticket. */
static void queue(struct turns_slot *slot, struct turns_file *file, int64_t now_ns) {
  uint64_t none = 0;
  if (__atomic_load_n(&slot->ticket, __ATOMIC_RELAXED) == 0)
    __atomic_store_n(&slot->queued_ns, now_ns, __ATOMIC_RELAXED);
  uint64_t ticket = __atomic_add_fetch(&file->next_ticket, 1, __ATOMIC_RELAXED);
  __atomic_compare_exchange_n(&slot->ticket, &none, ticket != 0 ? ticket : 1, false, __ATOMIC_RELAXED,
                              __ATOMIC_RELAXED);
}

bool turns_take(struct turns *turns) {
  struct turns_file *file = turns->file;
  struct turns_slot *slot = own(turns);
  int64_t now_ns = turns->clock->now_ns();
  int64_t give_up_ns = now_ns + TURNS_PATIENCE_NS;
  struct sight sight = {0, now_ns};
  bool ours;
  if (now_ns < __atomic_load_n(&turns->distrust_until_ns, __ATOMIC_RELAXED))
    return turns_is_ours(turns);
  queue(slot, file, now_ns);
  while (!(ours = turns_is_ours(turns)) && now_ns < give_up_ns) {
    uint32_t wake = __atomic_load_n(&file->wake, __ATOMIC_ACQUIRE);
    int64_t look_again_ns;
    __atomic_store_n(&slot->seen_ns, now_ns, __ATOMIC_RELAXED);
    if (!try_take(turns, &sight, now_ns, &look_again_ns) && look_again_ns > now_ns)
      wait_for_change(turns, wake, now_ns, look_again_ns);
    now_ns = turns->clock->now_ns();
  }
  __atomic_store_n(&slot->ticket, 0, __ATOMIC_RELAXED);
  if (!ours)
    __atomic_store_n(&turns->distrust_until_ns, now_ns + TURNS_DISTRUST_NS, __ATOMIC_RELAXED);
  return ours;
}

bool turns_must_pass(struct turns *turns, int64_t in_flight_ns) {
  int64_t now_ns = turns->clock->now_ns();
  struct turns_slot *slot = own(turns);
  if (now_ns + in_flight_ns < __atomic_load_n(&slot->slice_end_ns, __ATOMIC_RELAXED) || !turns_is_ours(turns))
    return false;
  if (another_waits(turns, now_ns))
    return true;
  __atomic_store_n(&slot->slice_end_ns, now_ns + TURNS_SLICE_NS, __ATOMIC_RELAXED);
  return false;
}

void turns_pass(struct turns *turns) {
  uint64_t turn = load_turn(turns);
  if (holder_of(turn) != turns->slot)
    return;
  __atomic_store_n(&turns->file->free_since_ns, turns->clock->now_ns(), __ATOMIC_RELAXED);
  if (!__atomic_compare_exchange_n(&turns->file->turn, &turn, next_turn(turn, -1), false, __ATOMIC_ACQ_REL,
                                   __ATOMIC_ACQUIRE))
    return;
  __atomic_add_fetch(&turns->file->wake, 1, __ATOMIC_RELEASE);
  turns->clock->wake_all(&turns->file->wake);
}

void turns_note_presence(struct turns *turns) {
  __atomic_store_n(&own(turns)->seen_ns, turns->clock->now_ns(), __ATOMIC_RELAXED);
}

void turns_announce_pass(struct turns *turns, int64_t at_ns) {
  __atomic_store_n(&own(turns)->passes_at_ns, at_ns, __ATOMIC_RELAXED);
}

void turns_note_activity(struct turns *turns, int64_t idle_at_ns) {
  struct turns_slot *slot = own(turns);
  __atomic_store_n(&slot->seen_ns, turns->clock->now_ns(), __ATOMIC_RELAXED);
  __atomic_store_n(&slot->idle_at_ns, idle_at_ns, __ATOMIC_RELAXED);
}

void turns_set_stuck(struct turns *turns, bool stuck) {
  if (__atomic_load_n(&own(turns)->stuck, __ATOMIC_RELAXED) != stuck)
    __atomic_store_n(&own(turns)->stuck, stuck, __ATOMIC_RELAXED);
}

/* One that has died did not clear its mark: whoever finds it so does. */
static bool is_alive(const struct turns *turns, int slot) {
  if (turns->shared == NULL || !shared_file_borrow_slot(turns->shared, slot))
    return true;
  __atomic_store_n(&turns->file->slots[slot].stuck, 0, __ATOMIC_RELAXED);
  shared_file_return_slot(turns->shared, slot);
  return false;
}

uint32_t turns_count_stuck(const struct turns *turns) {
  uint32_t count = 0;
  for (int i = 0; i < slots_used(turns); i++) {
    const struct turns_slot *slot = &turns->file->slots[i];
    if (i != turns->slot && __atomic_load_n(&slot->stuck, __ATOMIC_RELAXED) == 1 && is_another_tenant(turns, slot) &&
        is_alive(turns, i))
      count++;
  }
  return count;
}

void turns_set_terms(struct turns *turns, const struct turns_terms *terms) {
  struct turns_terms *published = &own(turns)->terms;
  __atomic_store_n(&published->tenant, terms->tenant, __ATOMIC_RELAXED);
  __atomic_store_n(&published->percent, terms->percent, __ATOMIC_RELAXED);
  __atomic_store_n(&published->policy, terms->policy, __ATOMIC_RELAXED);
  __atomic_store_n(&published->priority, terms->priority, __ATOMIC_RELAXED);
}

/* ---- joining --------------------------------------------------------------------------------------------------- */

/* `vgpurun` makes the folder; for a program that is limited without it, the first one does. */
static void make_folder(void) {
  if (mkdir(VGPU_LOCK_DIR, 01777) == 0)
    (void)chmod(VGPU_LOCK_DIR, 01777); /* whatever the umask */
}

bool turns_join(struct turns *turns, struct shared_file *file, const char *uuid) {
  char path[128];
  make_folder();
  snprintf(path, sizeof path, "%s/%.*s.turns", VGPU_LOCK_DIR, VGPU_UUID_SIZE, uuid);
  const char *reason = NULL;
  int slot = -1;
  if (!shared_file_open(file, path, sizeof(struct turns_file), 0, SHARED_FILE_ANY_OWNER))
    reason = strerror(errno);
  else if ((slot = shared_file_claim_slot(file, TURNS_SLOTS)) < 0)
    reason = errno == EAGAIN ? "more processes than it has room for" : strerror(errno);
  if (reason != NULL) {
    log_line(LOG_WARNING, "%s: %s; this process and others on the GPU do not take turns", path, reason);
    shared_file_close(file, sizeof(struct turns_file));
    return false;
  }
  *turns = (struct turns){.file = file->memory, .slot = slot, .shared = file, .clock = &turns_system_clock};
  *own(turns) = (struct turns_slot){0};
  uint32_t used = __atomic_load_n(&turns->file->slots_used, __ATOMIC_RELAXED);
  while (used <= (uint32_t)slot && !__atomic_compare_exchange_n(&turns->file->slots_used, &used, (uint32_t)slot + 1,
                                                                false, __ATOMIC_RELEASE, __ATOMIC_RELAXED))
    continue;
  return true;
}
