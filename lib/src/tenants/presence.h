/*
 * The files by which tenants see each other. Each tenant has a folder with two of them in VGPU_LOCK_DIR, which its
 * processes see read-only:
 *
 *   limits      written by the host: the tenant's limits, as those that it holds to (struct vgpu_limits)
 *   presence1   written by the tenant's processes (struct presence_file); the number is that of the layout
 *
 * A program that is limited without `vgpurun` has nobody that makes them: it makes both itself. They are read and
 * written by system calls alone, since a load from a mapping of a file that has been cut off would be SIGBUS.
 *
 * Folders outlive their programs that are killed, and any user may make thousands: a search is among some of them, and
 * the next one goes on from there.
 */
#pragma once

#include "shared/limits.h"
#include "tenants/tenants.h"

#include <limits.h>

#define PRESENCE_TENANTS 64 /* on a GPU, ours among them; of more, some are not seen */
#define PRESENCE_SLOTS 256  /* of a tenant's processes */

/* A process is at work for so long after it was last seen: one that works now and then keeps its place. */
#define PRESENCE_LASTS_NS 800000000LL

/* All zero at first; and what has been cut off counts as zero. */
struct presence_file {
  int64_t seen_ns[VGPU_MAX_DEVICES]
                 [PRESENCE_SLOTS]; /* of each device in the tenant's limits: when a process had work */
};

struct tenant {
  char name[64]; /* its folder's */
  uid_t owner;   /* and the owner of that */
  int device;    /* in its limits */
  struct tenant_terms terms;
  int64_t seen_ns; /* when any of its processes had work, as far as we have seen */
  struct shared_file file;
};

struct presence {
  const char *uuid;              /* in the tenant's limits: it may be moved to another GPU */
  const char *folder;            /* of the tenants */
  char own_name[64];             /* of a folder that we have made, and write the limits in; else empty */
  char path[PATH_MAX];           /* of our file */
  int slot;                      /* ours */
  struct tenant_terms published; /* what is in our limits */
  int64_t next_entry; /* of the folder of folders, where the last search came to its end; 0: at that of all */
  int count;          /* of tenants, ours first */
  struct tenant tenants[PRESENCE_TENANTS];
};

/* False where that cannot be, which is said on stderr. */
bool presence_open(struct presence *presence, const char *uuid, int device, const struct shared_file *usage, int slot);

/* Tells what our tenant may have, where no host does. */
void presence_publish(struct presence *presence, const struct tenant_terms *terms);

/* Says that we are at work. */
void presence_note(struct presence *presence, int64_t now_ns);

/* How many processes of a tenant are at work, but for our own. */
int presence_count(struct presence *presence, int tenant, int64_t now_ns);

/* Reads the terms of those that are known, and gives up those that have gone or paused for long. */
void presence_refresh(struct presence *presence, int64_t now_ns);

/* Looks for others, for a millisecond, from where the last search came to its end. */
void presence_search(struct presence *presence);

/* Call in a forked child. */
void presence_forget(struct presence *presence);
