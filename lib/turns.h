/*
 * Turns: limited processes on one GPU use it one after the other, for TURNS_SLICE_NS each, instead of being mixed by
 * the GPU's own time-slicing. Each then pays for its own time alone, and the GPU loses less to switching.
 *
 * They meet in a file per GPU in /tmp/vgpulock. Who may go is one word, changed by compare-and-swap: nobody, or a slot.
 * Those who wait hold tickets: high priority goes before low, and then the smallest ticket. Nothing there is trusted,
 * and nobody is waited for without a bound: a holder that has run dry, died, or stopped is passed over when the time by
 * which it said it would be idle has gone by; one with work that does not end loses its turn TURNS_OVERSTAY_NS after
 * its slice; and whoever has waited for TURNS_PATIENCE_NS goes ahead anyway. The worst that broken content does is that
 * the GPU mixes the work after all; a file that is truncated while it is mapped, though, ends the programs that look
 * into it (SIGBUS).
 */
#ifndef VGPU_TURNS_H
#define VGPU_TURNS_H

#include "shared_file.h"

#include <stdint.h>

#define TURNS_SLICE_NS 20000000LL
#define TURNS_GRACE_NS 300000LL       /* between a holder's expected idleness and taking its turn */
#define TURNS_RANK_NS 200000LL        /* for each one before us in the queue that does not take a free turn */
#define TURNS_AWAKE_NS 100000LL       /* before and after an announced pass, the next one does not sleep */
#define TURNS_OVERSTAY_NS 100000000LL /* past its slice, for a holder whose work was expected to be done by then */
#define TURNS_PATIENCE_NS 1000000000LL
#define TURNS_DISTRUST_NS 10000000000LL /* whose patience has ended goes ahead at once for so long */
#define TURNS_ACTIVE_NS 1000000000LL    /* who has not launched for this long is nobody's neighbour */
#define TURNS_STARVED_NS 200000000LL    /* a tenant of low priority waits no longer before one of high priority goes */
#define TURNS_SLOTS 256

/* What a tenant may have, as it tells the others. */
struct turns_terms {
  uint64_t tenant;   /* the same for all processes of a container */
  uint32_t percent;  /* its limit or, with VGPU_SM_BURST, its weight; VGPU_NO_SM_LIMIT: what is left */
  uint16_t policy;   /* VGPU_SM_* */
  uint16_t priority; /* VGPU_PRIORITY_* */
};

struct turns_slot {
  uint64_t ticket; /* 0: does not wait */
  int64_t seen_ns; /* when it last launched, or looked while it waited */
  int64_t idle_at_ns;
  int64_t slice_end_ns;
  int64_t queued_ns;    /* when it took its ticket */
  int64_t passes_at_ns; /* announced */
  struct turns_terms terms;
  uint64_t stuck; /* 1: its work does not end, and others go on beside it */
};

struct turns_file {
  uint64_t turn; /* sequence << 16 | slot + 1; 0 for the slot: free */
  uint64_t next_ticket;
  int64_t free_since_ns;
  uint32_t wake; /* a futex: changes when the turn becomes free */
  uint32_t slots_used;
  uint64_t reserved[4];
  struct turns_slot slots[TURNS_SLOTS];
};

struct turns_clock {
  int64_t (*now_ns)(void);
  /* Sleeps until *word is no longer `expected`, or duration_ns have passed. */
  void (*wait)(uint32_t *word, uint32_t expected, int64_t duration_ns);
  void (*wake_all)(uint32_t *word);
};
extern const struct turns_clock turns_system_clock;

struct turns {
  struct turns_file *file;
  int slot;
  struct shared_file *shared; /* whose slots they are; NULL: all are held */
  int64_t distrust_until_ns;
  const struct turns_clock *clock;
};

/* Joins those who share this GPU. False when that cannot be, which is said on stderr: then there are no turns. */
bool turns_join(struct turns *turns, struct shared_file *file, const char *uuid);

/* Tells the others what this tenant may have. */
void turns_set_terms(struct turns *turns, const struct turns_terms *terms);

/* Has anyone else launched lately, or does anyone wait? */
bool turns_have_company(const struct turns *turns);

/* The same of another tenant: not of a process of our own container. */
bool turns_have_another_tenant(const struct turns *turns);

/* Does another tenant of our priority or a higher one wait, or use its turn? */
bool turns_are_wanted(const struct turns *turns);

/* The share of the GPU's time, 1 to 100, that falls to a tenant of these terms now. By its own limit while that is
 * hard; else by the limits of those that have been active of late and are not of lower priority: without a limit what
 * is left, split evenly; with VGPU_SM_BURST its limit, and of what nobody else's limit covers a part in proportion to
 * it. */
uint32_t turns_share_percent(const struct turns *turns, const struct turns_terms *own);

bool turns_is_ours(const struct turns *turns);

/* Ours, used up with what is in flight, and wanted by another: to be passed on as soon as our work has drained. */
bool turns_must_pass(struct turns *turns, int64_t in_flight_ns);

/* Waits until it is our turn; false when patience ended first. */
bool turns_take(struct turns *turns);

/* We are going to give our turn up at about that time: the next one may be awake then. */
void turns_announce_pass(struct turns *turns, int64_t at_ns);

/* Gives our turn up. Nothing happens when it is not ours (any more). */
void turns_pass(struct turns *turns);

/* Our work in flight does not end, or does again. Who is stuck takes no turns, and the GPU mixes its work with that of
 * whose turn it is. Whoever takes the turn from one that does not drain says so on its behalf. */
void turns_set_stuck(struct turns *turns, bool stuck);

/* How many other tenants are stuck: by so many the GPU's own time-slicing divides the time of whose turn it is. */
uint32_t turns_count_stuck(const struct turns *turns);

/* We are there, and may launch. */
void turns_note_presence(struct turns *turns);

/* We are launching, and expect to be idle at that time. */
void turns_note_activity(struct turns *turns, int64_t idle_at_ns);

#endif
