#include "device_state.h"

#include "claim.h"
#include "clock.h"

/* Others have it for a microsecond or two, or longer where the machine holds them up. */
#define LOCK_TRIES 30
#define LOCK_SLEEPS 10
#define LOCK_SLEEP_NS 20000

static bool lock(struct device_state *state) {
  for (int tries = 0; state->file != NULL && !shared_file_try_lock(state->file); tries++) {
    if (tries == LOCK_TRIES + LOCK_SLEEPS)
      return false;
    if (tries >= LOCK_TRIES)
      clock_sleep_ns(LOCK_SLEEP_NS);
  }
  return true;
}

void device_state_read(struct device_state *state, struct vgpu_device_shared *copy) {
  claim_take(&state->claim);
  *copy = *state->memory;
  claim_release(&state->claim);
}

bool device_state_change(struct device_state *state, void (*change)(struct vgpu_device_shared *shared, void *how),
                         void *how) {
  claim_take(&state->claim);
  bool mine = lock(state);
  if (mine)
    change(state->memory, how);
  if (mine && state->file != NULL)
    shared_file_unlock(state->file);
  claim_release(&state->claim);
  return mine;
}
