/*
 * The host may take the GPUs from all processes of a container, and give them back later. A call of CUDA waits
 * meanwhile, before it reaches the driver, and asks for the GPUs in the usage file: whoever looks after suspended
 * containers on the host brings them back. The driver itself would let the call wait as long, and tell nobody.
 */
#ifndef VGPU_DEVICE_SUSPENSION_H
#define VGPU_DEVICE_SUSPENSION_H

#include "device/process.h"

/* Asks, at most once in a while. */
COLD void suspension_ask(void);

/* Returns when the GPUs are back. Holds nothing, and lets signal handlers run. */
COLD void suspension_wait(void);

/* The first thing that every call of the driver does where there are limits. */
static inline void suspension_pass(void) {
  if (process_is_suspended())
    suspension_wait();
}

#endif
