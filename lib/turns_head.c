/* Whose turn it is: one word in the head of the file, which is changed under the lock. */
#include "turns_parts.h"

/* The head as `change` leaves it, unless it is not changed. Under the lock, so that nobody's change is lost. */
static bool change_head(struct turns *turns, bool (*change)(struct turns_head *head, const void *how),
                        const void *how) {
  const struct turns_system *system = turns->system;
  if (!system->lock(turns->file))
    return false;
  struct turns_head head;
  turns_read(turns, &head, sizeof head, 0);
  bool changed = change(&head, how);
  if (changed)
    system->write(turns->file, &head, sizeof head, 0);
  system->unlock(turns->file);
  return changed;
}

static bool make_room_for(struct turns_head *head, const void *how) {
  uint32_t used = (uint32_t)*(const int *)how + 1;
  bool grows = head->slots_used < used;
  if (grows)
    head->slots_used = used;
  return grows;
}

void turns_make_room(struct turns *turns) {
  change_head(turns, make_room_for, &turns->slot);
}

struct hand_over {
  uint64_t from;
  int to; /* -1: nobody */
  uint64_t tenant;
  int64_t now_ns;
};

static bool hand_turn_over(struct turns_head *head, const void *how) {
  const struct hand_over *hand_over = how;
  if (head->turn != hand_over->from)
    return false;
  head->turn = turns_next_turn(head->turn, hand_over->to);
  head->tenant = hand_over->tenant;
  if (hand_over->to < 0) {
    head->free_since_ns = hand_over->now_ns;
    head->wake++;
  }
  return true;
}

bool turns_hand_over(struct turns *turns, int to, int64_t now_ns) {
  turns->ours_until_ns = 0;
  const struct hand_over hand_over = {turns->seen.head.turn, to, turns->own.terms.tenant, now_ns};
  return change_head(turns, hand_turn_over, &hand_over);
}

/* Until when the others have to leave it to us. */
static int64_t until_ns(const struct turns *turns) {
  return turns_min(turns->said_idle_at_ns, turns->own.slice_end_ns);
}

bool turns_check_ours(struct turns *turns) {
  turns_read(turns, &turns->seen.head.turn, sizeof turns->seen.head.turn, 0);
  bool ours = turns_holder_of(turns->seen.head.turn) == turns->slot;
  turns->ours_until_ns = ours ? until_ns(turns) : 0;
  return ours;
}

bool turns_know_ours(struct turns *turns, int64_t now_ns) {
  if (now_ns >= turns->ours_until_ns)
    return turns_check_ours(turns);
  turns->ours_until_ns = until_ns(turns); /* may have been put off */
  return true;
}
