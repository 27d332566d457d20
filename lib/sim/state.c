#include "state.h"

#include <errno.h>
#include <stddef.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "state_file.h"

#define STATE_MAGIC 0x3730304d49535056ULL /* changes with the layout */

static int state_fd = -1;
static struct state *state;
static unsigned own_slot = STATE_NO_SLOT;
static unsigned device_rows[SIM_MAX_DEVICES];
static uint64_t own_cgroups[SIM_CGROUP_DEPTH];

/* Devices are known by their UUIDs, so that processes with different configurations share what they have in common. */
static bool find_rows(const char *path) {
  for (unsigned device = 0; device < sim_config.device_count; device++) {
    const char *uuid = sim_config.devices[device].uuid;
    unsigned row = 0;
    while (row < SIM_MAX_DEVICES && state->devices[row].uuid[0] &&
           strncmp(state->devices[row].uuid, uuid, sizeof state->devices[row].uuid) != 0)
      row++;
    if (row == SIM_MAX_DEVICES) {
      complain("%s has no room for another device; remove it or set VGPUSIM_STATE to another path", path);
      return false;
    }
    strncpy(state->devices[row].uuid, uuid, sizeof state->devices[row].uuid);
    device_rows[device] = row;
  }
  return true;
}

bool state_open(void) {
  const char *path;
  if (state)
    return true;
  int fd = state_file_open(sizeof *state, STATE_MAGIC, &path);
  if (fd < 0)
    return false;
  void *mapped = mmap(NULL, sizeof *state, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  if (mapped == MAP_FAILED) {
    complain("%s: %s", path, strerror(errno));
    close(fd);
    return false;
  }
  if (!state_file_reserve(fd, 0, offsetof(struct state, processes))) {
    complain("%s: %s", path, strerror(errno));
    munmap(mapped, sizeof *state);
    close(fd);
    return false;
  }
  state = mapped;
  state_file_lock_byte(fd, STATE_LOCK_ALL);
  state->magic = STATE_MAGIC;
  bool good = find_rows(path);
  state_file_unlock_byte(fd, STATE_LOCK_ALL);
  if (!good) {
    munmap(state, sizeof *state);
    state = NULL;
    close(fd);
    return false;
  }
  state_fd = fd;
  cgroups_of_caller(own_cgroups);
  return true;
}

/* The number of this process's PID namespace, which the link "pid:[4026531836]" has; 0 when it cannot be told. */
static uint32_t own_pid_namespace(void) {
  char link[64] = "";
  uint32_t number = 0;
  if (readlink("/proc/self/ns/pid", link, sizeof link - 1) < 0)
    return 0;
  for (const char *p = link; *p; p++)
    if (*p >= '0' && *p <= '9')
      number = number * 10 + (uint32_t)(*p - '0');
  return number;
}

bool state_join(void) {
  /* A child would hold our locks through the mapping as well as through the descriptor. */
  madvise(state, sizeof *state, MADV_DONTFORK);
  state_file_lock_byte(state_fd, STATE_LOCK_ALL);
  unsigned slot = 0;
  while (slot < STATE_MAX_PROCESSES && !state_file_try_lock(state_fd, STATE_LOCK_SLOTS + slot))
    slot++;
  if (slot == STATE_MAX_PROCESSES) {
    state_file_unlock_byte(state_fd, STATE_LOCK_ALL);
    complain("more than %d processes use the simulated GPUs", STATE_MAX_PROCESSES);
    return false;
  }
  if (!state_file_reserve(state_fd, offsetof(struct state, processes[slot]), sizeof state->processes[slot]) ||
      !state_file_reserve(state_fd, offsetof(struct state, schedules[slot]), sizeof state->schedules[slot])) {
    state_file_unlock_byte(state_fd, STATE_LOCK_ALL);
    complain("the state file of the simulated GPUs: %s", strerror(errno));
    return false;
  }
  memset(&state->processes[slot], 0, sizeof state->processes[slot]);
  uint64_t number = atomic_fetch_add(&state->last_owner, 1) + 1;
  atomic_store(&state->processes[slot].owner, number << STATE_OWNER_SLOT_BITS | (slot + 1));
  atomic_store(&state->processes[slot].pid_namespace, own_pid_namespace());
  memcpy(state->processes[slot].cgroups, own_cgroups, sizeof own_cgroups);
  atomic_store(&state->processes[slot].pid, (uint32_t)getpid());
  state_file_mark_pid(state_fd, STATE_LOCK_PIDS + slot);
  if (atomic_load(&state->slots_used) <= slot)
    atomic_store(&state->slots_used, slot + 1);
  own_slot = slot;
  state_file_unlock_byte(state_fd, STATE_LOCK_ALL);
  return true;
}

void state_leave_after_fork(void) {
  state_file_close(state_fd); /* the parent's locks must not outlive it through this copy */
  state_fd = -1;
  state = NULL;
  own_slot = STATE_NO_SLOT;
}

/* A program that closes every descriptor closes ours, and with it the mark of the PID; the slot is held by the mapping.
 */
static int file(void) {
  int fd = state_file_check(state_fd);
  if (fd != state_fd && fd >= 0) {
    state_fd = fd;
    if (own_slot != STATE_NO_SLOT)
      state_file_mark_pid(fd, STATE_LOCK_PIDS + own_slot);
  }
  return state_fd;
}

struct state_device *state_device(unsigned device) {
  return &state->devices[device_rows[device]];
}

struct state_process_device *state_of_slot(unsigned slot, unsigned device) {
  return &state->processes[slot].devices[device_rows[device]];
}

struct state_process_device *state_own(unsigned device) {
  return state_of_slot(own_slot, device);
}

static bool is_live_in(int fd, unsigned slot) {
  return slot == own_slot || state_file_is_locked(fd, STATE_LOCK_SLOTS + slot);
}

static bool slot_is_live(unsigned slot) {
  return is_live_in(file(), slot);
}

struct state *state_lock(void) {
  state_file_lock_byte(file(), STATE_LOCK_ALL);
  return state;
}

void state_unlock(void) {
  state_file_unlock_byte(file(), STATE_LOCK_ALL);
}

struct state *state_mapped(void) {
  return state;
}

struct state_limit *state_limits(void) {
  return state->limits;
}

const uint64_t *state_cgroups(unsigned slot) {
  return state->processes[slot].cgroups;
}

const uint64_t *state_own_cgroups(void) {
  uint64_t now = cgroup_now();
  if (now && now != own_cgroups[0]) { /* the process has been moved */
    cgroups_of_caller(own_cgroups);
    if (own_slot != STATE_NO_SLOT)
      memcpy(state->processes[own_slot].cgroups, own_cgroups, sizeof own_cgroups);
  }
  return own_cgroups;
}

unsigned state_own_slot(void) {
  return own_slot;
}

struct state_process *state_process(unsigned slot) {
  return &state->processes[slot];
}

unsigned state_row(unsigned device) {
  return device_rows[device];
}

bool state_slot_is_live(unsigned slot) {
  return slot < STATE_MAX_PROCESSES && slot_is_live(slot);
}

uint64_t state_own_owner(void) {
  return own_slot == STATE_NO_SLOT ? 0 : atomic_load(&state->processes[own_slot].owner);
}

unsigned state_slot_of(uint64_t owner) {
  return (unsigned)(owner % (1U << STATE_OWNER_SLOT_BITS)) - 1;
}

bool state_owner_is_live(uint64_t owner) {
  unsigned slot = state_slot_of(owner);
  return state_slot_is_live(slot) && atomic_load(&state->processes[slot].owner) == owner;
}

bool state_make_room(size_t start, size_t length) {
  return state_file_reserve(file(), start, length);
}

static unsigned slots_used(void) {
  unsigned used = atomic_load(&state->slots_used);
  return used < STATE_MAX_PROCESSES ? used : STATE_MAX_PROCESSES;
}

void state_visit_holders(unsigned device, state_visitor visit, void *argument) {
  for (unsigned slot = 0; slot < slots_used(); slot++)
    if (atomic_load(&state_of_slot(slot, device)->used_bytes) && slot_is_live(slot))
      visit(slot, state_of_slot(slot, device), argument);
}

/* The PID of a live slot in the caller's PID namespace; 0 when it has none there. A process with a mark lives. */
static uint32_t pid_of(int fd, unsigned slot) {
  long marked = slot == own_slot ? -1 : state_file_marked_pid(fd, STATE_LOCK_PIDS + slot);
  if (marked >= 0)
    return (uint32_t)marked;
  /* Our own, or the mark is gone, as in a process that is ending: then a number of another namespace would mislead. */
  bool same_namespace = atomic_load(&state->processes[slot].pid_namespace) == own_pid_namespace();
  return same_namespace && is_live_in(fd, slot) ? atomic_load(&state->processes[slot].pid) : 0;
}

uint32_t state_pid_of(unsigned slot) {
  return pid_of(file(), slot);
}

static bool is_mps_client(unsigned slot) {
  uint64_t owner = atomic_load(&state->processes[slot].owner);
  return owner != 0 && atomic_load(&state->processes[slot].mps_client) == owner;
}

unsigned state_list_holders(unsigned device, struct state_holder list[STATE_MAX_PROCESSES]) {
  int fd = file();
  unsigned count = 0;
  for (unsigned slot = 0; slot < slots_used(); slot++) {
    const _Atomic uint64_t *used_bytes = &state_of_slot(slot, device)->used_bytes;
    uint32_t pid = atomic_load(used_bytes) ? pid_of(fd, slot) : 0;
    uint64_t its_bytes =
        pid ? atomic_load(used_bytes) : 0; /* before, they may have been those of the slot's last owner */
    if (its_bytes)
      list[count++] = (struct state_holder){slot, pid, its_bytes, is_mps_client(slot)};
  }
  return count;
}

static void add_used(unsigned slot, struct state_process_device *use, void *argument) {
  (void)slot;
  *(uint64_t *)argument += atomic_load(&use->used_bytes);
}

uint64_t state_used_bytes(unsigned device) {
  uint64_t sum = 0;
  state_visit_holders(device, add_used, &sum);
  return sum;
}

void state_release(unsigned device, uint64_t bytes) {
  atomic_fetch_sub(&state_own(device)->used_bytes, bytes);
}

bool state_find_process(uint32_t pid, unsigned *slot) {
  for (*slot = 0; *slot < slots_used(); ++*slot)
    if (atomic_load(&state->processes[*slot].pid) != 0 && pid_of(file(), *slot) == pid)
      return true;
  return false;
}

bool state_begin_request(unsigned slot) {
  while (!state_file_try_lock(file(), STATE_LOCK_REQUESTS + slot)) {
    if (!slot_is_live(slot))
      return false;
    clock_wait_until(clock_ns() + NS_PER_MS);
  }
  return true;
}

void state_end_request(unsigned slot) {
  state_file_unlock_byte(file(), STATE_LOCK_REQUESTS + slot);
}

void state_remap_devices(const unsigned from[SIM_MAX_DEVICES]) {
  unsigned before[SIM_MAX_DEVICES];
  memcpy(before, device_rows, sizeof before);
  for (unsigned device = 0; device < sim_config.device_count; device++)
    device_rows[device] = before[from[device]];
}
