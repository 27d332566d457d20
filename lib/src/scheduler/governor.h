/*
 * The limiter, where the driver lets us: the GPU's own scheduler holds the limits, and no launch is held. A thread adds
 * up for how long the GPU has worked for this process, charges that to its container, and takes the process's channels
 * off the GPU, in the middle of a kernel, until there are tokens again. docs/dev/compute.md tells how it works.
 */
#pragma once

#include "compute/meter.h"
#include "scheduler/samples.h"

/* Has the meter's device governed from now on, where the driver is found to obey: false where it does not, or has made
 * no channels there. `uuid` is the GPU's, and may change with it; `ask` is given the meter's owner. Takes some
 * milliseconds. */
bool governor_begin(struct meter *meter, const char *uuid, bool (*is_suspended)(void), samples_ask *ask);

/* A meter's note_work: wakes its thread. */
void governor_note_work(struct meter *meter);

/* Has what has not been charged yet charged: the process ends. Waits for a tenth of a second at most. */
void governor_settle_all(void);

/* Call in a forked child, which has neither the thread nor the contexts. */
void governor_forget(void);
