/*
 * The files of the turns. Each tenant has a folder with two of them in VGPU_LOCK_DIR, which its processes see
 * read-only:
 *
 *   limits   written by the host: the tenant's limits, as those that it holds to (struct vgpu_limits)
 *   turns5   written by the tenant's processes (struct turns_file); the number is that of the layout
 *
 * A program that is limited without `vgpurun` has nobody that makes them: it makes both itself. They are read and
 * written by system calls alone, since a load from a mapping of a file that has been cut off would be SIGBUS.
 */
#ifndef VGPU_TURNS_TURNS_FILE_H
#define VGPU_TURNS_TURNS_FILE_H

#include "shared/limits.h"
#include "shared/shared_file.h"
#include "turns/turns.h"
#include "turns/turns_folders.h"

#define TURNS_RESTING 16

struct turns_peer {
  char name[64]; /* its folder's */
  uid_t owner;   /* and the owner of that */
  int device;    /* in its limits */
  struct shared_file file;
};

struct turns_files {
  const char *uuid;                       /* in the tenant's limits: it may be moved to another GPU */
  const char *folder;                     /* of the tenants */
  char own_name[64];                      /* of a folder that we have made, and write the limits in; else empty */
  int32_t publishing;                     /* a claim, on what is */
  struct turns_terms published;           /* there */
  int64_t tried_ns;                       /* when our folder, which was gone, was to be made again */
  int64_t now_ns;                         /* at the last refresh, by the clock of the file system */
  struct turns_folders folders;           /* what is to be looked at */
  struct turns_peer peers[TURNS_TENANTS]; /* ours first, as in turns.tenants */
  char resting[TURNS_RESTING][64];        /* names of those that were at work last: they may go on at any time */
  int next_resting;                       /* the place of the next one */
};

extern const struct turns_system turns_file_system; /* of a struct turns_files */

/* Opens the tenant's own file, to take turns on a device with that number in the tenant's limits, where `uuid` may
 * change. `usage` is what all processes of the tenant share. NULL where that cannot be, which is said on stderr. */
struct turns_files *turns_files_open(const char *uuid, int device, const struct shared_file *usage);

/* Tells what this tenant may have, where no host does. */
void turns_files_publish(struct turns_files *files, const struct turns_terms *terms);

/* Call in a forked child. */
void turns_files_forget(struct turns_files *files);

/* Gives the files up before others have been looked for. */
void turns_files_close(struct turns_files *files);

#endif
