/*
 * Turns: limited processes on one GPU use it one after the other, for about TURNS_SLICE_NS each, instead of being mixed
 * by the GPU's own time-slicing. Each then pays for its own time alone, and the GPU loses less to switching.
 *
 * The turn is a lease: one word of a file (turns_file.h) says who has it and until when. Its holder has it end shortly
 * after it expects to be idle; what has run dry, died or stopped is passed over then. Those who wait hold tickets: high
 * priority goes before low, and then who has waited longest.
 *
 * Nothing in the file is trusted. A slot counts while a living process holds its lock, and nothing that stands in it
 * raises anybody's own limit. Who has waited for TURNS_PATIENCE_NS, or lost the turn before its lease ended, goes ahead
 * without turns for TURNS_DISTRUST_NS: the worst that others can do is that the GPU mixes the work after all.
 */
#ifndef VGPU_TURNS_H
#define VGPU_TURNS_H

#include "turns_file.h"

#define TURNS_SLICE_NS 20000000LL
#define TURNS_GRACE_NS 300000LL       /* a turn that is not used is left for so long to its holder, or who is next */
#define TURNS_LONGEST_NS 250000000LL  /* how far ahead a lease may end: the GPU mixes what takes longer */
#define TURNS_STARVED_NS 200000000LL  /* so long one of low priority waits, and then counts as one of high priority */
#define TURNS_PATIENCE_NS 900000000LL /* for the turn: 45 others may have theirs before */
#define TURNS_DISTRUST_NS 30000000000LL
#define TURNS_ACTIVE_NS 1000000000LL /* who has not launched for so long is nobody's neighbour */

#define TURNS_MOST_TENANTS 17 /* so many count: one without a limit keeps a 17th, whatever strangers say */

struct turns {
  const struct turns_system *system;
  void *file;
  int slot;
  int32_t lock;          /* a claim that guards the rest */
  struct turns_slot own; /* as it is to be seen by others */
  int64_t published_ns;
  uint64_t lease; /* ours, as we wrote it last; 0: the turn is not ours */
  int64_t leased_ns, slice_end_ns, passes_ns, distrust_until_ns;
  bool was_starved;       /* when it took the turn: the slice is not cut short for high priority */
  struct turns_file seen; /* when we looked last */
  int64_t looked_ns;
  int others[TURNS_SLOTS], others_count; /* that were active, and held */
  uint64_t tenants[TURNS_MOST_TENANTS];  /* theirs and ours */
  int tenants_count;
  bool held[TURNS_SLOTS]; /* when it was asked */
  int64_t asked_ns[TURNS_SLOTS];
  int next_asked;
  bool asked_all;
};

/* Begins in that slot of the file. */
void turns_begin(struct turns *turns, const struct turns_system *system, void *file, int slot);

/* Tells the others what this tenant may have. */
void turns_set_terms(struct turns *turns, const struct turns_terms *terms);

/* Is anybody else there, another tenant (not a process of our own container), or one of higher priority than ours? */
bool turns_have_company(struct turns *turns);
bool turns_have_another_tenant(struct turns *turns);
bool turns_high_priority_is_there(struct turns *turns);

/* Does another tenant of our priority or a higher one wait, or use its turn? */
bool turns_are_wanted(struct turns *turns);

/* The share of the GPU's time, 1 to 100, that falls to a tenant of these terms now. By its own limit while that is
 * hard; else by the limits of those that are there and not of lower priority: without a limit what is left, split
 * evenly; with VGPU_SM_BURST its limit, and of what nobody else's limit covers a part in proportion to it. */
uint32_t turns_share_percent(struct turns *turns, const struct turns_terms *own);

/* Are this and the others' shares all of the time? */
bool turns_share_all(struct turns *turns);

bool turns_is_ours(struct turns *turns);

/* Is it ours, and to be passed on as soon as our work has drained? When one waits that does not have a lower priority,
 * and the slice is used up with what is in flight; or at once when one of higher priority waits. */
bool turns_must_pass(struct turns *turns, int64_t in_flight_ns);

/* Waits until it is our turn; false when the others are not to be trusted. */
bool turns_take(struct turns *turns);

/* We expect to be idle at that time, and launch no more before: the next one may be awake then. */
void turns_announce_pass(struct turns *turns, int64_t at_ns);

/* Gives our turn up, whatever is on the GPU. Nothing happens when it is not ours (any more). */
void turns_pass(struct turns *turns);

/* We are there, and may launch; launch, and expect to be idle at that time; have found that we are. */
void turns_note_presence(struct turns *turns);
void turns_note_activity(struct turns *turns, int64_t idle_at_ns);
void turns_note_idleness(struct turns *turns);

#endif
