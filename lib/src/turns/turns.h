/*
 * Turns: limited processes on one GPU use it one after the other, for about TURNS_SLICE_NS each, instead of being mixed
 * by the GPU's own time-slicing. Each then pays for its own time alone, and the GPU loses less to switching.
 *
 * They meet in a file in /tmp/vgpulock. The turn is a lease: the slot of its holder says until when. A holder has it
 * end shortly after it expects to be idle, so that a process that has run dry, died or stopped is passed over. To take
 * the turn, a process writes its lease and looks whether another one has done so, too; then both withdraw. Those that
 * wait hold tickets: high priority goes first, then the tenant whose slice it is.
 *
 * Everybody may write the file, and truncate it, so that a load from a mapping of it would be SIGBUS: it is read and
 * written by system calls alone. A slot counts while a living process holds its lock, and nothing that stands in it
 * raises the own limit. A process that has waited for TURNS_PATIENCE_NS goes ahead without turns for TURNS_DISTRUST_NS.
 */
#ifndef VGPU_TURNS_TURNS_H
#define VGPU_TURNS_TURNS_H

#include "shared/shared_file.h"

#include <stdint.h>

#define TURNS_SLICE_NS 20000000LL
#define TURNS_GRACE_NS 300000LL       /* a turn that is not used stays so long with its holder, or with the next one */
#define TURNS_KNOWN_NS 10000000LL     /* how old may be what we know of a lock, and what others see of us */
#define TURNS_LONGEST_NS 250000000LL  /* how far ahead a lease may end; a process that waits for longer goes first */
#define TURNS_PATIENCE_NS 900000000LL /* for the turn: 45 others may have theirs before */
#define TURNS_DISTRUST_NS 30000000000LL
#define TURNS_MOST_TENANTS 17 /* so many count: one without a limit keeps a 17th, whatever strangers say */

#define TURNS_SLOTS 256
#define TURNS_FILE_VERSION 4 /* part of the file's name: other layouts are other files */

/* A tenant's limit, policy and priority, as it tells the others. */
struct turns_terms {
  uint64_t tenant;   /* the same for all processes of a container */
  uint32_t percent;  /* its limit or, with VGPU_SM_BURST, its weight; VGPU_NO_SM_LIMIT: what is left */
  uint16_t policy;   /* VGPU_SM_* */
  uint16_t priority; /* VGPU_PRIORITY_* */
};

struct turns_slot {
  int64_t turn_ends_ns; /* the process has the turn until then, or had it */
  int64_t ticket_ns;    /* since when it waits for the turn; 0: it does not wait */
  int64_t seen_ns;      /* when it last launched, or looked while it waited */
  struct turns_terms terms;
};

/* All zero at first; and what has been cut off counts as zero. */
struct turns_file {
  uint32_t wake; /* a futex: changes when the turn becomes free */
  uint32_t reserved[15];
  struct turns_slot slots[TURNS_SLOTS]; /* each written by its process alone */
  uint64_t end;                         /* zero: written to give back its length to a file that has been cut off */
};

struct turns_system {
  int64_t (*now_ns)(void);
  bool (*read)(void *file, void *to, size_t size, size_t at); /* false: not all of it could be had */
  void (*write)(void *file, const void *from, size_t size, size_t at);
  bool (*is_held)(void *file, int slot); /* by a living process */
  /* Waits until the file's `wake` is no longer `expected`, or duration_ns have passed; or not at all. */
  void (*wait)(void *file, uint32_t expected, int64_t duration_ns, bool awake);
  void (*wake_all)(void *file);
};
extern const struct turns_system turns_file_system; /* of a struct shared_file */

/* The other tenants, as the last look at the file showed them. */
struct turns_view {
  bool company, another_tenant, higher_priority; /* anybody; not a process of our container; a higher one than ours */
  bool wanted;                      /* another tenant of our priority or a higher one waits, or uses its turn */
  bool higher_waits, goes_before;   /* one that waits has a higher priority than the turn, or goes first */
  bool is_leased;                   /* to another one */
  int64_t free_at_ns, passes_at_ns; /* when the turn ends, or ended; and when its holder may pass it */
  uint32_t hard, burst, unlimited;  /* limits of tenants of no lower priority, in percent; how many have none */
};

struct turns {
  const struct turns_system *system;
  void *file;
  int slot;
  int32_t lock;           /* a claim that guards the rest */
  struct turns_slot own;  /* as it is to be seen by others */
  uint32_t turn_priority; /* our own when we took the turn: high if we had waited for long */
  int64_t slice_end_ns, distrust_until_ns;
  struct turns_file seen; /* when we looked last */
  struct turns_view view;
  uint64_t tenants[TURNS_MOST_TENANTS]; /* ours first */
  int tenants_count;
  bool held[TURNS_SLOTS]; /* when it was asked */
  int64_t looked_ns, asked_ns;
};

/* Opens the file of that GPU and takes a slot in it, to begin in. Else -1, which is said on stderr. */
int turns_file_join(struct shared_file *file, const char *uuid);
void turns_begin(struct turns *turns, const struct turns_system *system, void *file, int slot);

/* Sets what this tenant may have, which the others learn with the next write: that we are there, and may launch. */
void turns_set_terms(struct turns *turns, const struct turns_terms *terms);
void turns_note_presence(struct turns *turns);

/* As it was lately. */
struct turns_view turns_look(struct turns *turns);

/* The share of the GPU's time, 1 to 100, that falls to a tenant of these terms now. By its own limit while that is
 * hard; else by the limits of those that are there and not of lower priority: without a limit what is left, split
 * evenly; with VGPU_SM_BURST its limit, and of what nobody else's limit covers a part in proportion to it. */
uint32_t turns_share_percent(struct turns *turns, const struct turns_terms *own);

/* Is it ours, and to be passed on as soon as our work has drained? When one waits that does not have a lower priority,
 * and the slice is used up with what is in flight; or at once when one of higher priority waits. */
bool turns_must_pass(struct turns *turns, int64_t in_flight_ns);

bool turns_is_ours(struct turns *turns);

/* Waits until it is our turn; false when the others are not to be trusted. */
bool turns_take(struct turns *turns);

/* Gives our turn up, whatever is on the GPU. Nothing happens when it is not ours (any more). */
void turns_pass(struct turns *turns);

/* We launch, and expect to be idle at that time; or have found that we are. */
void turns_note_activity(struct turns *turns, int64_t idle_at_ns);
void turns_note_idleness(struct turns *turns);

#endif
