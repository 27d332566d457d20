/*
 * Holes: what lies before charged_until_ns and has not been charged. The processes of a container charge their work
 * when they come back to the driver, which need not be the order in which the GPU did it: so the time that a charge
 * leaves out is remembered for a second, and is charged to whoever turns out to have used it.
 *
 * There are few, each one word that is changed by compare-and-swap. A process that is overtaken or killed half way
 * loses one of them, and that time is free; nothing is charged twice.
 */
#ifndef VGPU_HOLES_H
#define VGPU_HOLES_H

#include "abi.h"

#include <stdbool.h>

struct span {
  int64_t start_ns, end_ns;
};

/* This is left out, in whole microseconds of the clock. */
void holes_add(struct vgpu_device_shared *device, struct span span, int64_t now_ns);

/* Takes the first part of the wanted time that has been left out; false when there is none. */
bool holes_take(struct vgpu_device_shared *device, struct span wanted, int64_t now_ns, struct span *taken);

#endif
