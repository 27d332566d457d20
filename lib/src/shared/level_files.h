/*
 * Opens the two files of abi.h at each level, the limits mapped and the usage by system calls, and holds this process's
 * slot in the usage file.
 *
 * The slot is held by a kernel lock of the open file description, so that it ends with the process however that ends.
 * A forked child starts without files: it holds no GPU memory, and must not keep its parent's slot alive.
 */
#pragma once

#include "abi.h"
#include "memory/ledger.h"
#include "shared/device_state.h"
#include "shared/limits.h"
#include "shared/shared_file.h"

#include <stdbool.h>

struct level_files {
  int level;                        /* 0: the process's own; then that of the share which it is a part of, and so on */
  bool is_of_program;               /* the limits are variables that the program was started with, within a share */
  const struct vgpu_limits *limits; /* NULL: limits come from the environment alone */
  struct shared_file usage;         /* the usage file; not open when the usage is kept in this process only */
  int slot;                         /* this process's slot, or -1 */
  struct device_state devices[VGPU_MAX_DEVICES];
};

/* Is there a limits file for this process? Cheap; decides whether the library does anything at all. */
bool level_files_have_limits(void);

/* Has the program asked for no limits, and do its limits files allow that? */
bool level_files_limits_are_lifted(void);

/* Opens both files of each level, and returns how many there are. Failures are reported on stderr, and answered with
 * the strictest safe reading: an unreadable limits file grants nothing; without a usage file every process is held to
 * the limit by itself, and one that lacks descriptors or memory for it gets nothing. */
int level_files_open(struct level_files levels[VGPU_MAX_LEVELS]);

/* Sets the limits of such a level for a device, by its place in the limits file of the next one. */
void level_files_limit_program(int device_number, struct limits limits);

/* The number of this process's PID namespace; 0 where /proc does not tell. Containers that share a usage file have one
 * each. */
uint32_t level_files_pid_namespace(void);

/* For a process without limits that counts for itself: no file. */
void level_files_open_alone(struct level_files *files);

/* Takes a free slot, and wipes it. None is taken without a usage file; a process that finds all slots taken, or lacks
 * descriptors or memory for one, gets nothing from then on (said on stderr). */
void level_files_claim_slot(struct level_files *files);

/* Says in the slot that this process shares memory with others. */
void level_files_note_sharing(struct level_files *files);

/* How the ledger reaches the slots of a usage file. */
extern const struct ledger_slots level_files_slots;

/* Lets go of what a forked child has inherited. */
void level_files_forget(struct level_files *files);
