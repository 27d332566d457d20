/* What the files of the turns share. All but turns_begin_look is called with the lock held. */
#ifndef VGPU_TURNS_PARTS_H
#define VGPU_TURNS_PARTS_H

#include "claim.h"
#include "turns.h"

/* How old what we have seen may be, and what others see of us: a look takes about a microsecond. */
#define TURNS_LATELY_NS 200000LL
#define TURNS_LATELY_ALONE_NS 5000000LL

static inline int64_t turns_min(int64_t a, int64_t b) {
  return a < b ? a : b;
}

static inline size_t turns_place_of(int slot) {
  return offsetof(struct turns_file, slots) + (size_t)slot * sizeof(struct turns_slot);
}

static inline int turns_holder_of(uint64_t turn) {
  return (int)(turn & 0xffff) - 1;
}

static inline uint64_t turns_next_turn(uint64_t turn, int holder) {
  return ((turn >> 16) + 1) << 16 | (uint64_t)(holder + 1);
}

/* Any number may stand in the file: it is compared with sums of ours, and nothing is added to it or taken from it that
 * has not been bounded. */
static inline bool turns_is_older(int64_t at_ns, int64_t now_ns, int64_t age_ns) {
  return at_ns < now_ns - age_ns;
}

static inline bool turns_seen_within(const struct turns_slot *slot, int64_t now_ns, int64_t age_ns) {
  return slot->seen_ns > now_ns - age_ns && slot->seen_ns <= now_ns + age_ns;
}

/* turns_look.c: reads of the file, with zeros for what has been cut off; looks at all of it. From begin, which takes
 * the lock and returns the time, to end, what was seen a moment ago will do. */
void turns_read(struct turns *turns, void *to, size_t size, size_t at);
void turns_look(struct turns *turns, int64_t now_ns);
int64_t turns_begin_look(struct turns *turns);
void turns_end_look(struct turns *turns);
int turns_slots_used(const struct turns *turns);
bool turns_is_another_tenant(const struct turns *turns, const struct turns_slot *slot);

/* turns_slot.c: writes our slot. */
void turns_publish(struct turns *turns, int64_t now_ns);

/* turns_head.c: has the file reach as far as our slot; hands the turn to a slot, or to nobody (-1), unless that has
 * been done by another since we looked; reads whether the turn is ours. */
void turns_make_room(struct turns *turns);
bool turns_hand_over(struct turns *turns, int to, int64_t now_ns);
bool turns_check_ours(struct turns *turns);
bool turns_know_ours(struct turns *turns, int64_t now_ns);

/* turns_queue.c: how many are before us; whether one waits for whom we make way; when the turn may be taken from its
 * holder, and when that is expected to pass it. */
int turns_rank(const struct turns *turns, int64_t now_ns);
bool turns_another_waits(const struct turns *turns, int64_t now_ns);
int64_t turns_takeable_at_ns(const struct turns *turns, int holder, int64_t now_ns);
int64_t turns_expected_pass_ns(const struct turns *turns);

#endif
