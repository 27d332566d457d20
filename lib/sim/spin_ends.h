/* When spins (spins.h) end. A time that comes so long after the end of a spin is a name that tells both. */
#pragma once

#include "common.h"

#define SPIN_ENDS 1024 /* remembered ones */
#define SPIN_GOES_ON UINT64_MAX

/* The name of the time at which the spin of this number ends. */
uint64_t spin_name(uint64_t number);
bool time_is_spin(uint64_t time_ns);

/* When the spin of a number ends: SPIN_GOES_ON, or a time. */
void spin_set_end(uint64_t number, uint64_t end_ns);

/* Returns when the spin that a time names ends, SPIN_GOES_ON before that is known, and how long after that the time is.
 */
uint64_t spin_end(uint64_t time_ns, uint64_t *after_ns);

/* For a moment. */
void spin_wait(void);
