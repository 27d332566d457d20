/*
 * Kernels that spin until another one begins. One that is called A_until_B and launched for the nth time ends, after
 * its duration, when B or B_until_C begins that is launched for the nth time since B was first awaited. Until then
 * nobody knows when it ends: such a time is later than all others, names its spin, and is looked up again.
 *
 * A spin leaves room on its device: other streams' work goes on beside it.
 */
#ifndef SIM_SPINS_H
#define SIM_SPINS_H

#include "common.h"

bool spin_is_one(const char *kernel_name);

/* A spin is launched that begins at that time. Returns when it ends; 0 when there are too many. */
uint64_t spin_launch(const char *kernel_name, uint64_t begins_ns);

/* Any other kernel is launched. */
void spin_note_launch(const char *kernel_name, uint64_t begins_ns);

/* The time that this one has become, if that is known by now. */
uint64_t spin_known(uint64_t time_ns);
static inline bool spin_is_known(uint64_t time_ns) {
  return time_ns >> 62 == 0;
}

/* Until that time, or for a moment where it is not known. */
void spin_wait_until(uint64_t time_ns);

#endif
