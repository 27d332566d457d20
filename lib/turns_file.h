/*
 * The file in which limited processes on one GPU meet, one for each GPU, in /tmp/vgpulock.
 *
 * Everybody may write it, and whoever may write a file may truncate it: a load from a mapping of it would be SIGBUS. So
 * it is read and written by system calls alone, which return errors instead. Each process writes its own slot alone,
 * and no lock but that of its slot is ever held. All zero is the first content, and what has been cut off is zero.
 */
#ifndef VGPU_TURNS_FILE_H
#define VGPU_TURNS_FILE_H

#include "shared_file.h"

#include <stdint.h>

#define TURNS_SLOTS 256
#define TURNS_FILE_VERSION 4 /* part of the file's name: other layouts are other files */

/* What a tenant may have, as it tells the others. */
struct turns_terms {
  uint64_t tenant;   /* the same for all processes of a container */
  uint32_t percent;  /* its limit or, with VGPU_SM_BURST, its weight; VGPU_NO_SM_LIMIT: what is left */
  uint16_t policy;   /* VGPU_SM_* */
  uint16_t priority; /* VGPU_PRIORITY_* */
};

struct turns_slot {
  int64_t turn_ends_ns; /* the process has the turn until then, or had it until then */
  int64_t ticket_ns;    /* since when it waits for the turn; 0: it does not wait */
  int64_t seen_ns;      /* when it last launched, or looked while it waited */
  struct turns_terms terms;
};

struct turns_file {
  uint32_t wake; /* a futex: changes when the turn becomes free */
  uint32_t reserved[15];
  struct turns_slot slots[TURNS_SLOTS];
  uint64_t end; /* zero: written to give back its length to a file that has been cut off */
};

/* The clock, and how the file is reached. */
struct turns_system {
  int64_t (*now_ns)(void);
  bool (*read)(void *file, void *to, size_t size, size_t at); /* false: not all of it could be had */
  void (*write)(void *file, const void *from, size_t size, size_t at);
  bool (*is_held)(void *file, int slot); /* by a living process */
  /* Sleeps until the file's `wake` is no longer `expected`, or duration_ns have passed; or not at all. */
  void (*wait)(void *file, uint32_t expected, int64_t duration_ns);
  void (*wake_all)(void *file);
};

/* Of a struct shared_file. */
extern const struct turns_system turns_file_system;

/* Opens the file of that GPU and takes a slot in it. Else -1, which is said on stderr. */
int turns_file_join(struct shared_file *file, const char *uuid);

#endif
