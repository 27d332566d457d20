/*
 * Times, known or not. The time at which work ends is found out as the devices get there: until then it is the name of
 * a piece of work (timeline.h) or of a spin (spins.h), which is later than all known times, and is looked up again.
 */
#pragma once

#include "common.h"

static inline bool time_is_known(uint64_t time_ns) {
  return time_ns >> 62 == 0;
}

/* The time that this one has become, if that is known by now. */
uint64_t time_known(uint64_t time_ns);

/* Whether it has come. */
bool time_has_come(uint64_t time_ns);

/* Until that time, or for a moment where it is not known. */
void time_wait(uint64_t time_ns);

/* A time of a group that stands for this one: the same, or that of an empty piece in the group that waits for it. */
uint64_t time_in_group(unsigned group, uint64_t time_ns);

/* The later of two times of a group. */
uint64_t time_later(uint64_t a_ns, uint64_t b_ns);
