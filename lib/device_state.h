/*
 * What the processes of a container share of a device: the token bucket, and the counters that others display. It is
 * changed under a lock, which the kernel gives back when its holder dies; a stranger who may write the file may hold it
 * for ever, and is not waited for.
 */
#ifndef VGPU_DEVICE_STATE_H
#define VGPU_DEVICE_STATE_H

#include "abi.h"
#include "shared_file.h"

#include <stdbool.h>

struct device_state {
  struct vgpu_device_shared *memory;
  struct shared_file *file; /* NULL: nobody shares it */
  int32_t claim;            /* of a thread that reads or changes it */
};

static inline bool device_state_is_used(const struct device_state *state) {
  return __atomic_load_n(&state->memory->uuid[0], __ATOMIC_RELAXED) != '\0';
}

void device_state_read(struct device_state *state, struct vgpu_device_shared *copy);

/* False when the lock cannot be had. */
bool device_state_change(struct device_state *state, void (*change)(struct vgpu_device_shared *shared, void *how),
                         void *how);

#endif
