/*
 * Turns: limited processes on one GPU use it one after the other, for TURNS_SLICE_NS each, instead of being mixed by
 * the GPU's own time-slicing. Each then pays for its own time alone, and the GPU loses less to switching.
 *
 * They meet in a file (turns_file.h). Who may go is one word: nobody, or a slot. Those who wait hold tickets: high
 * priority goes before low, and then who has waited longest. Nothing there is trusted, and nobody is waited for without
 * a bound: a holder that has run dry, died, or stopped is passed over when the time by which it said it would be idle
 * has gone by; one with work that does not end loses its turn TURNS_OVERSTAY_NS after its slice; and whoever has waited
 * for TURNS_PATIENCE_NS goes ahead anyway. The worst that broken content does is that the GPU mixes the work after all.
 *
 * The file is looked at as it was a moment ago where that will do, and rarely by who is alone.
 */
#ifndef VGPU_TURNS_H
#define VGPU_TURNS_H

#include "turns_file.h"

#define TURNS_SLICE_NS 20000000LL
#define TURNS_SHORTER_NS 2000000LL    /* that some slices are, at most */
#define TURNS_GRACE_NS 300000LL       /* between a holder's expected idleness and taking its turn */
#define TURNS_RANK_NS 200000LL        /* for each one before us in the queue that does not take a free turn */
#define TURNS_AWAKE_NS 100000LL       /* before and after an announced pass, the next one does not sleep */
#define TURNS_OVERSTAY_NS 100000000LL /* past its slice, for a holder whose work was expected to be done by then */
#define TURNS_PATIENCE_NS 1000000000LL
#define TURNS_DISTRUST_NS 10000000000LL /* whose patience has ended goes ahead at once for so long */
#define TURNS_ACTIVE_NS 1000000000LL    /* who has not launched for this long is nobody's neighbour */
#define TURNS_STARVED_NS 200000000LL    /* a tenant of low priority waits no longer before one of high priority goes */
#define TURNS_SILENT_NS 30000000LL /* who is at work and has launched nothing for this long may have to do with it */

struct turns {
  const struct turns_system *system;
  void *file;
  int slot;
  int32_t lock;           /* a claim that guards the rest */
  struct turns_slot own;  /* as it is to be seen by others */
  struct turns_file seen; /* when we looked last */
  int64_t looked_ns, published_ns;
  bool company; /* was seen then */
  bool said_at_work;
  int64_t said_seen_ns, said_idle_at_ns;
  int64_t ours_until_ns; /* at least, by what we have said: nobody takes the turn from us before */
  uint32_t stuck, silent;
  uint32_t slices; /* that we have had */
  int64_t distrust_until_ns;
};

/* Begins in that slot of the file. */
void turns_begin(struct turns *turns, const struct turns_system *system, void *file, int slot);

/* Tells the others what this tenant may have. */
void turns_set_terms(struct turns *turns, const struct turns_terms *terms);

/* Has anyone else launched lately, or is anyone at work or waiting? */
bool turns_have_company(struct turns *turns);

/* The same of another tenant: not of a process of our own container. */
bool turns_have_another_tenant(struct turns *turns);

/* Does another tenant of our priority or a higher one wait, or use its turn? */
bool turns_are_wanted(struct turns *turns);

/* The share of the GPU's time, 1 to 100, that falls to a tenant of these terms now. By its own limit while that is
 * hard; else by the limits of those that have been active of late and are not of lower priority: without a limit what
 * is left, split evenly; with VGPU_SM_BURST its limit, and of what nobody else's limit covers a part in proportion to
 * it. */
uint32_t turns_share_percent(struct turns *turns, const struct turns_terms *own);

/* Are this and the others' shares all of the time? */
bool turns_share_all(struct turns *turns);

bool turns_is_ours(struct turns *turns);

/* Ours, used up with what is in flight, and wanted by another: to be passed on as soon as our work has drained. */
bool turns_must_pass(struct turns *turns, int64_t in_flight_ns);

/* Waits until it is our turn; false when patience ended first. */
bool turns_take(struct turns *turns);

/* We are going to give our turn up at about that time: the next one may be awake then. */
void turns_announce_pass(struct turns *turns, int64_t at_ns);

/* Gives our turn up; with nothing of ours on the GPU any more, or all the same. Nothing happens when it is not ours
 * (any more). */
void turns_pass(struct turns *turns, bool drained);

/* Our work in flight does not end, or does again. Who is stuck takes no turns, and the GPU mixes its work with that of
 * whose turn it is. Whoever takes the turn from one that does not drain says so on its behalf. */
void turns_set_stuck(struct turns *turns, bool stuck);

/* How many other tenants are stuck: by so many the GPU's own time-slicing divides the time of whose turn it is. */
uint32_t turns_count_stuck(struct turns *turns);

/* How many more may be: they launched, as they say, and have not been heard since. */
uint32_t turns_count_silent(struct turns *turns);

/* Is there another tenant that has not been heard lately? Whoever is alone does not tell each launch. */
bool turns_have_quiet_tenant(struct turns *turns);

/* We are there, and may launch. */
void turns_note_presence(struct turns *turns);

/* We are launching, and expect to be idle at that time; or have found that we are. */
void turns_note_activity(struct turns *turns, int64_t idle_at_ns);
void turns_note_idleness(struct turns *turns);

#endif
