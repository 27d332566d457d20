/*
 * The host may take the GPUs from all processes of a container, and give them back later. A call of CUDA waits
 * meanwhile, before it reaches the driver, and asks for the GPUs in the usage file: the host's
 * daemon (vgpurun guard) brings them back. The driver itself would let the call wait as long, and tell nobody.
 */
#pragma once

#include "device/process.h"

/* Asks, at most once in a while. */
COLD void suspension_ask(void);

/* Returns when the GPUs are back. Holds nothing, and lets signal handlers run. */
COLD void suspension_wait(void);

/* Waits likewise before the call that starts the driver, which decides what GPUs the process will see: the host waits
 * until that is over before it moves any process of the container, and a call that begins later waits for the host. A
 * second thread that starts the driver meanwhile finds it started when the first one leaves. */
void suspension_enter_start(void);

/* Call when the driver has started. */
void suspension_leave_start(void);

/* The first thing that every call of the driver does where there are limits. */
static inline void suspension_pass(void) {
  if (process_is_suspended())
    suspension_wait();
}
