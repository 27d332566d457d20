#include "shared/device_state.h"

#include "base/claim.h"
#include "base/clock.h"

#include <string.h>

/* Others have it for some microseconds, or longer where the machine holds them up. */
#define LOCK_TRIES 30
#define LOCK_SLEEPS 10
#define LOCK_SLEEP_NS 20000

#define SIZE sizeof(struct vgpu_device_shared)

/* For all devices: the lock of a file does not keep the threads of a process from each other. */
static int32_t claim;

static bool lock(int descriptor, off_t at) {
  for (int tries = 0; !shared_file_try_lock_bytes(descriptor, at, SIZE); tries++) {
    if (tries == LOCK_TRIES + LOCK_SLEEPS)
      return false;
    if (tries >= LOCK_TRIES)
      clock_sleep_ns(LOCK_SLEEP_NS);
  }
  return true;
}

static bool read_at(struct device_state *state, int descriptor, struct vgpu_device_shared *copy) {
  if (shared_file_read_at(descriptor, copy, SIZE, state->at) || shared_file_mend(state->file))
    return true;
  memset(copy, 0, SIZE);
  return false;
}

bool device_state_read(struct device_state *state, struct vgpu_device_shared *copy) {
  if (state->file != NULL)
    return read_at(state, shared_file_descriptor(state->file), copy);
  claim_take(&claim);
  *copy = *state->memory;
  claim_release(&claim);
  return true;
}

static bool change_in_file(struct device_state *state, void (*change)(struct vgpu_device_shared *, void *), void *how) {
  struct vgpu_device_shared shared;
  int descriptor = shared_file_descriptor(state->file);
  if (descriptor < 0 || !lock(descriptor, state->at))
    return false;
  bool changed = read_at(state, descriptor, &shared);
  if (changed) {
    change(&shared, how);
    changed = shared_file_write_at(descriptor, &shared, SIZE, state->at);
  }
  shared_file_unlock_bytes(descriptor, state->at, SIZE);
  return changed;
}

bool device_state_change(struct device_state *state, void (*change)(struct vgpu_device_shared *shared, void *how),
                         void *how) {
  bool changed = true;
  claim_take(&claim);
  if (state->file != NULL)
    changed = change_in_file(state, change, how);
  else
    change(state->memory, how);
  claim_release(&claim);
  return changed;
}

static void note_not_enforced(struct vgpu_device_shared *shared, void *what) {
  shared->not_enforced |= *(uint32_t *)what;
}

void device_state_not_enforced(struct device_state *state, uint32_t what) {
  if ((__atomic_fetch_or(&state->not_enforced, what, __ATOMIC_RELAXED) & what) != what)
    device_state_change(state, note_not_enforced, &what);
}
