/*
 * Turns: limited processes on one GPU use it one after the other, for about TURNS_SLICE_NS each, instead of being mixed
 * by the GPU's own time-slicing. Each then pays for its own time alone, and the GPU loses less to switching.
 *
 * A tenant, which is a container or a slice, has a file that its own processes write and all others read. Each process
 * has a slot in it. The turn is a lease: the slot of its holder says until when. A holder has it end shortly after it
 * expects to be idle, so that a process that has run dry, died or stopped is passed over. To take the turn, a process
 * writes its lease and looks whether another one has done so, too; then both withdraw. Those that wait hold tickets:
 * high priority goes first, then the tenant whose slice it is.
 *
 * A tenant may lie in its file, but about itself alone: its limit and its priority are what its host has written.
 * A waiting process keeps account of how long each other tenant has held the turn meanwhile, and does not believe its
 * lease once that is more than its limit lets it have. No lock is involved: a process that may only read a file can
 * lock it.
 */
#ifndef VGPU_TURNS_TURNS_H
#define VGPU_TURNS_TURNS_H

#include "abi.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define TURNS_SLICE_NS 20000000LL
#define TURNS_GRACE_NS 300000LL       /* a turn that is not used stays so long with its holder, or with the next one */
#define TURNS_KNOWN_NS 10000000LL     /* how old may be what we know of the tenants, and what others see of us */
#define TURNS_LOOK_NS 100000000LL     /* after which we look for other tenants also where that delays a launch */
#define TURNS_LONGEST_NS 250000000LL  /* how far ahead a lease may end; a process that waits for longer goes first */
#define TURNS_PATIENCE_NS 800000000LL /* for the turn: 39 others may have theirs before */

#define TURNS_TENANTS 64 /* on a GPU, ours among them; of more, some are not seen (turns_file.c) */
#define TURNS_SLOTS 256  /* of a tenant's processes */

/* A tenant's limit, policy and priority. */
struct turns_terms {
  uint32_t percent;  /* its limit or, with VGPU_SM_BURST, its weight; VGPU_NO_SM_LIMIT: what is left */
  uint16_t policy;   /* VGPU_SM_* */
  uint16_t priority; /* VGPU_PRIORITY_* */
};

struct turns_slot {
  int64_t turn_ends_ns;  /* the process has the turn until then, or had it */
  int64_t slice_ends_ns; /* and is to pass it about then, if another one waits */
  int64_t ticket_ns;     /* since when it waits for the turn; 0: it does not wait */
  int64_t seen_ns;       /* when it last launched, or looked while it waited; or what it lets drain began */
};

/* All zero at first; and what has been cut off counts as zero. */
struct turns_file {
  struct turns_slot slots[VGPU_MAX_DEVICES][TURNS_SLOTS]; /* of each device in the tenant's limits */
};

/* A tenant, as the last refresh found it in its file; the own one has been read but for our slot. */
struct turns_tenant {
  uint64_t id; /* the same for all that see it */
  struct turns_terms terms;
  int processes;                  /* those that are there */
  int64_t ticket_ns, ticket_slot; /* of the process that has waited for longest; 0: none waits */
  int64_t ends_ns, passes_at_ns;  /* the lease that ends last, or ended; and when its holder may pass the turn */
  bool has_starved;               /* the one that waits, or that has the turn */
  int64_t held_zero_at_ns;        /* a bucket that pays for the time in which we waited for it */
};

struct turns_system {
  int64_t (*now_ns)(void);
  void (*sleep_ns)(int64_t duration_ns);
  /* Keeps the tenants that are on the GPU still, with their terms, and adds those that have paused; ours stays first.
   * Returns how many. */
  int (*list)(void *files, struct turns_tenant *tenants, int count);
  /* Looks for others and adds them. It may take a fifth of a millisecond, and the first time longer. */
  int (*look)(void *files, struct turns_tenant *tenants, int count);
  int (*read)(void *files, int tenant, struct turns_slot *slots); /* up to TURNS_SLOTS; how many could be read */
  void (*write)(void *files, int slot, const struct turns_slot *own);
};

/* The other tenants, as the last refresh found them in their files. */
struct turns_view {
  bool company, another_tenant, higher_priority; /* anybody; not a process of our container; a higher one than ours */
  int siblings;                                  /* other processes of our container */
  bool wanted;                       /* another tenant of our priority or a higher one waits, or uses its turn */
  bool higher_has_turn, goes_before; /* of a higher priority than our turn; one that waits goes first */
  bool is_leased, is_contended;      /* to another one; to one that we do not wait for */
  int64_t free_at_ns, passes_at_ns;  /* when the turn ends, or ended; and when its holder may pass it */
};

/* Limits of tenants, in percent; how many have none. */
struct turns_sums {
  uint32_t hard, burst, unlimited;
};

struct turns {
  const struct turns_system *system;
  void *files;
  int slot;
  int32_t lock;                               /* a claim that guards the rest */
  struct turns_slot own;                      /* as it is to be seen by others */
  struct turns_terms terms;                   /* our own */
  uint32_t turn_priority;                     /* our own when we took the turn: high if we had waited for long */
  struct turns_tenant tenants[TURNS_TENANTS]; /* ours first */
  int tenants_count;
  struct turns_sums others; /* of no lower priority than ours */
  struct turns_view view;
  int64_t refreshed_ns, listed_ns, looked_ns;
};

void turns_begin(struct turns *turns, const struct turns_system *system, void *files, int slot);

/* Tells the others that we are there, and may launch. */
void turns_note_presence(struct turns *turns);

/* Looks for other tenants. Call where that delays no work: while the GPU is busy with ours, or we wait. */
void turns_look(struct turns *turns);

/* Returns the others' turns as they were read lately, and reads them again where that is too long ago. */
struct turns_view turns_refresh(struct turns *turns);

/* Takes the own terms, and tells the share of the GPU's time, 1 to 100, that falls to this tenant now. By its own limit
 * while that is hard; else by the limits of those that are there and not of lower priority: without a limit what is
 * left, split evenly; with VGPU_SM_BURST its limit, and of what nobody else's limit covers a part in proportion to it.
 */
uint32_t turns_share_percent(struct turns *turns, const struct turns_terms *terms);

/* Returns true when the turn is ours and is to be passed once our work has drained: the slice is used up with what is
 * in flight and a waiting process goes before us, or a tenant of higher priority has the turn already. */
bool turns_must_pass(struct turns *turns, int64_t in_flight_ns);

bool turns_is_ours(struct turns *turns);

/* Waits until it is our turn, for TURNS_PATIENCE_NS at most. */
void turns_take(struct turns *turns);

/* Gives our turn up, whatever is on the GPU. Nothing happens when it is not ours (any more). */
void turns_pass(struct turns *turns);

/* We launch, and expect to be idle at that time; or have found that we are. */
void turns_note_activity(struct turns *turns, int64_t idle_at_ns);
void turns_note_idleness(struct turns *turns);

/* We launch no more before the turn is passed. Our work on the GPU began then, and is done at that time at the latest:
 * the next one wakes up by that. */
void turns_note_drain(struct turns *turns, int64_t since_ns, int64_t idle_at_ns);

#endif
