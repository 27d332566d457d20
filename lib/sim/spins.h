/*
 * Kernels that spin until another one begins. One that is called A_until_B and launched for the nth time ends, after
 * its duration, when B or B_until_C begins that is launched for the nth time since B was first awaited. Until that is
 * launched it is no piece of its group's work, but has a name of its own (times.h).
 *
 * A spin leaves room on its device: other streams' work goes on beside it.
 */
#pragma once

#include "common.h"

bool spin_is_one(const char *kernel_name);

/* Whether others may await this kernel: then it matters when it begins. */
bool spin_is_awaited(const char *kernel_name);

/* A spin is launched that begins at that time of its group. Returns when it ends; 0 when there are too many. */
uint64_t spin_launch(const char *kernel_name, unsigned group, uint64_t begins_ns, uint64_t duration_ns);

/* A kernel is launched that may be awaited. */
void spin_note_launch(const char *kernel_name, uint64_t begins_ns);

/* The group goes away, and its spins end. */
void spins_end_of(unsigned group);
