/*
 * The state that all processes and containers share: one file, mapped by each. An all-zero file is a valid, empty one.
 *
 * Every process that uses CUDA owns a slot, and the slot is the only truth about that process: a device's used memory
 * is the sum over the live slots. A slot is live while its owner holds an open-file-description lock on the slot's
 * byte, so whatever kills a process also frees its memory. A classic record lock on a second byte lets a reader
 * in another PID namespace learn the owner's PID as that namespace sees it.
 */
#pragma once

#include <stdatomic.h>

#include "cgroups.h"
#include "config.h"
#include "state_timeline.h"

#define STATE_MAX_PROCESSES 1024

struct state_device {
  char uuid[48];       /* empty: the row is free */
  uint64_t peak_bytes; /* the most memory that was ever in use at once */
};

struct state_process_device {
  _Atomic uint64_t used_bytes;
  _Atomic uint64_t checkpointed_bytes; /* memory of a process that is off its GPUs, which it will need again */
};

/* A request of one process to another one's restore thread (checkpoint.c, restore_thread.c). */
enum checkpoint_request {
  CHECKPOINT_NOTHING,
  CHECKPOINT_LOCK,
  CHECKPOINT_SAVE,
  CHECKPOINT_RESTORE,
  CHECKPOINT_UNLOCK,
};

struct state_gpu_pair {
  char old_uuid[16], new_uuid[16];
};

struct state_checkpoint {
  _Atomic uint32_t process_state; /* CUprocessState */
  _Atomic uint32_t request;       /* enum checkpoint_request: nothing again once it has been answered */
  _Atomic uint32_t answer;        /* CUresult */
  _Atomic uint32_t thread_id;     /* in its own PID namespace; 0: it does not listen yet */
  uint32_t timeout_ms;            /* a lock's; 0: none */
  uint32_t pair_count;            /* pairs of a restore; 0: onto the GPUs that it had */
  struct state_gpu_pair pairs[SIM_MAX_DEVICES];
};

/* A process's allocations on its control device (control.c), by handles; 0: nothing. */
struct state_client {
  _Atomic uint32_t handle;
  _Atomic uint32_t devices[SIM_MAX_DEVICES], subdevices[SIM_MAX_DEVICES]; /* by the rows of the devices */
};

struct state_process {
  _Atomic uint32_t pid; /* in its own PID namespace */
  _Atomic uint32_t pid_namespace;
  _Atomic uint64_t owner;      /* a number of its own for ever, and in the low bits its slot, plus one; 0: nobody */
  _Atomic uint64_t mps_client; /* the owner, where that is a client of an MPS server */
  struct state_checkpoint checkpoint;
  struct state_client client;
  uint64_t cgroups[SIM_CGROUP_DEPTH]; /* the process's, the nearest first */
  struct state_process_device devices[SIM_MAX_DEVICES];
};

/* Memory that one process made and others may use. One process pays for it: who made it, and when that gives it up, the
 * one that imported it last. */
#define STATE_MAX_SHARED 256

struct state_shared {
  uint64_t id; /* 0: the row is free */
  uint64_t size_bytes, charged_bytes;
  uint32_t device_row;
  uint32_t payer; /* a slot */
  uint32_t importers;
  uint32_t last_importer; /* a slot */
  uint32_t given_up;      /* by its maker */
  uint32_t reserved;
};

/* The part of a device's memory that a cgroup may have (limits.h). Under the lock of the file. */
#define STATE_MAX_LIMITS 512

struct state_limit {
  uint64_t cgroup; /* 0: the row is free */
  uint32_t device_row;
  uint32_t reserved;
  uint64_t soft_bytes, hard_bytes;
};

struct state {
  uint64_t magic;
  _Atomic uint32_t slots_used; /* slots at and above this number were never claimed */
  uint8_t reserved[52];
  struct state_device devices[SIM_MAX_DEVICES];
  _Atomic uint64_t last_owner;
  _Atomic uint64_t schedule; /* which one is true (shared_schedule.h) */
  struct state_group groups[STATE_MAX_GROUPS];
  struct state_process processes[STATE_MAX_PROCESSES];
  uint64_t last_shared_id;
  struct state_shared shared[STATE_MAX_SHARED]; /* under the lock of the file */
  struct state_limit limits[STATE_MAX_LIMITS];
  struct schedule schedules[STATE_MAX_PROCESSES][2];
  struct state_piece queues[STATE_MAX_QUEUES][STATE_QUEUE];
  _Atomic uint64_t records[SIM_MAX_DEVICES][STATE_RECORDS];
};

/* Maps the file and finds or makes the rows of the configured devices. False after one line on stderr. */
bool state_open(void);

/* Claims a slot for this process. False after one line on stderr. */
bool state_join(void);

/* In a forked child: lets go of the parent's locks and its slot. */
void state_leave_after_fork(void);

/* The rows of a configured device: shared, and of this process. */
struct state_device *state_device(unsigned device);
struct state_process_device *state_own(unsigned device);
struct state_process_device *state_of_slot(unsigned slot, unsigned device);

/* Calls visit for every live process that holds memory of the device, this one included. A slot that holds nothing
 * needs no look at its lock. */
typedef void (*state_visitor)(unsigned slot, struct state_process_device *use, void *argument);
void state_visit_holders(unsigned device, state_visitor visit, void *argument);

/* A live process that holds memory of a device, by its PID in the caller's PID namespace. */
struct state_holder {
  unsigned slot;
  uint32_t pid;
  uint64_t used_bytes;
  bool is_client; /* a client of an MPS server */
};

/* The PID of a live process in the caller's PID namespace; 0 when it has none there. */
uint32_t state_pid_of(unsigned slot);

/* Lists those that have a PID there, and returns how many. */
unsigned state_list_holders(unsigned device, struct state_holder list[STATE_MAX_PROCESSES]);

/* Memory of a device over all live processes. */
uint64_t state_used_bytes(unsigned device);

/* Gives memory of a device back that this process has taken (limits.h). */
void state_release(unsigned device, uint64_t bytes);

/* For parts of the state that have a file of their own. */
struct state *state_lock(void);
void state_unlock(void);
struct state *state_mapped(void); /* NULL: the file is not open, as in a forked child */
struct state_limit *state_limits(void);
const uint64_t *state_cgroups(unsigned slot); /* another process's, and this one's */
const uint64_t *state_own_cgroups(void);
unsigned state_own_slot(void);
struct state_process *state_process(unsigned slot);
unsigned state_row(unsigned device);
bool state_slot_is_live(unsigned slot);

#define STATE_NO_SLOT STATE_MAX_PROCESSES /* for a process that only looks */

/* Identifies this process from state_join on, and tells whether the process that an identifier names lives. */
#define STATE_OWNER_SLOT_BITS 11
uint64_t state_own_owner(void);
bool state_owner_is_live(uint64_t owner);
unsigned state_slot_of(uint64_t owner);

bool state_make_room(size_t start, size_t length); /* on the disk, before the first store there */

/* The living process that the caller's PID namespace knows by this number. False when it uses no simulated GPU. */
bool state_find_process(uint32_t pid, unsigned *slot);

/* Lets a single caller at a time ask a process for something; a caller that dies lets go. False when the process has
 * ended. */
bool state_begin_request(unsigned slot);
void state_end_request(unsigned slot);

/* In this process the configured devices are others from now on: the one at `from[i]` is the one at `i`. */
void state_remap_devices(const unsigned from[SIM_MAX_DEVICES]);
