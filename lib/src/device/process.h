/* This process: whether it is limited, its files and its ledger, and that it may be a forked child.
 */
#pragma once

#include "base/compiler.h"
#include "memory/ledger.h"
#include "shared/level_files.h"

enum process_state { PROCESS_UNKNOWN, PROCESS_FREE, PROCESS_LIMITED };
extern enum process_state process_state;

/* Decides at the first call; opens the files when there is a limit. */
COLD enum process_state process_decide(void);

/* Is it certain that there is nothing to do? */
static inline bool process_is_free(void) {
  return __atomic_load_n(&process_state, __ATOMIC_ACQUIRE) == PROCESS_FREE;
}

/* Is anything limited here, or at least counted for a profile? The first thing that every hook of CUDA asks, one load
 * and one branch, since it also loads the real functions for a program that is linked with libcuda and calls us without
 * any lookup. */
static inline bool process_is_limited(void) {
  enum process_state state = __atomic_load_n(&process_state, __ATOMIC_ACQUIRE);
  if (__builtin_expect(state == PROCESS_FREE, 1))
    return false;
  return state == PROCESS_LIMITED || process_decide() == PROCESS_LIMITED;
}

/* Has the host taken the GPUs from this process, at any level? Also where that is not known yet, before the first call.
 * The list ends with NULL. */
extern const uint32_t *process_suspended[VGPU_MAX_LEVELS + 1];
static inline bool process_is_suspended(void) {
  const uint32_t *suspended;
  for (int i = 0; (suspended = __atomic_load_n(&process_suspended[i], __ATOMIC_RELAXED)) != NULL; i++)
    if (__builtin_expect(__atomic_load_n(suspended, __ATOMIC_RELAXED) != VGPU_NOT_SUSPENDED, 0))
      return true;
  return false;
}

/* Does the program see a GPU of the limits' size? Not where it is only profiled. */
bool process_shows_limits(void);

/* Has a forked child, which cannot use CUDA and owns nothing, call `forget`: so a file whose state must not be the
 * parent's starts over. The list is made by the linker, so that nothing has to run beforehand. */
#define PROCESS_IN_CHILD(forget)                                                                                       \
  KEPT __attribute__((section("in_child"))) static void (*const forget##_in_child)(void) = forget

/* Is compute limited, paused, or measured for turns with memory, on any device? Asked by every launch. */
bool process_limits_compute_somewhere(void);

/* The levels of its limits, its own first: shares that are parts of each other. Only for a limited process. */
extern struct level_files process_level_files[VGPU_MAX_LEVELS];
extern int process_level_count;
static inline int process_levels(void) {
  return process_level_count;
}
static inline const struct level_files *process_files_at(int level) {
  return &process_level_files[level];
}
static inline const struct level_files *process_files(void) {
  return process_files_at(0);
}

/* The limits file that names the devices by their numbers at the first level; NULL: the environment has the limits. */
const struct vgpu_limits *process_devices_file(void);

/* Is it to be a client of an MPS server, by the limits file of its own share or of one around it? */
bool process_is_together(void);

/* The number of a device at a level, by that which it has at the first; -1: not granted there. A limits file may have
 * been changed since they were found: at each new device they are found again. */
void process_find_devices(void);
int process_number_above(int level, int device_number);
static inline int process_number_at(int level, int device_number) {
  return level == 0 ? device_number : process_number_above(level, device_number);
}
struct device_state *process_device_state(int level, int device_number);

/* Has this process used the GPU, so that it has asked for a slot? */
bool process_has_slot(void);

/* The ledger, with a slot taken for this process. */
extern const struct ledger *process_ledger_with_slot; /* NULL: not asked for yet */
COLD const struct ledger *process_claim_slot(void);
static inline const struct ledger *process_ledger(void) {
  const struct ledger *ledger = __atomic_load_n(&process_ledger_with_slot, __ATOMIC_ACQUIRE);
  return __builtin_expect(ledger != NULL, 1) ? ledger : process_claim_slot();
}

/* The program shares GPU memory with other processes: the host must not take it off its GPU (vgpurun/suspend). */
void process_note_sharing(void);

/* The ledger for reading only: takes no slot. */
const struct ledger *process_ledger_view(void);

/* The ledger of a level, for reading only. */
const struct ledger *process_ledger_at(int level);
