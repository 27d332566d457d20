/*
 * The state of a device that the processes of a container share: the token bucket, and the figures that others display.
 * System calls read and write the state, since a process that may write the file may also truncate it. A change is
 * made on a copy, under a lock of these bytes, and written at once: a process that is killed meanwhile has changed
 * nothing, and the kernel releases its lock. A hostile process may hold the lock for ever, so callers wait a bounded
 * time.
 */
#pragma once

#include "abi.h"
#include "shared/shared_file.h"

#include <stdbool.h>

struct device_state {
  struct shared_file *file;          /* NULL: nobody shares it, and it is in `memory` */
  struct vgpu_device_shared *memory; /* else NULL */
  off_t at;                          /* in the file */
  uint32_t not_enforced;             /* noted by this process */
};

/* All zero, and false, where it cannot be read. */
bool device_state_read(struct device_state *state, struct vgpu_device_shared *copy);

/* Has `change` change it. False when it cannot be had. */
bool device_state_change(struct device_state *state, void (*change)(struct vgpu_device_shared *shared, void *how),
                         void *how);

/* Reports a limit that cannot be enforced, for `vgpurun smi`, until the file is made anew: VGPU_NOT_ENFORCED_*. Callers
 * also write a line on stderr. */
void device_state_not_enforced(struct device_state *state, uint32_t what);
