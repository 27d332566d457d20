/*
 * Time on the devices. Work is a piece in the queue of a channel group (groups.h), and runs as time passes
 * (schedule.h). No thread does that: whoever looks lets the devices do what they have done since the last look.
 */
#pragma once

#include "pieces.h"
#include "schedule.h"

struct work {
  uint64_t after, after_ns; /* begins no earlier than that time, and so long after it */
  uint64_t duration_ns;
  bool is_copy; /* runs on while its group is off, as a copy engine does */
};

/* Queues work in a group; returns when all that the group has up to this work has ended, or when the copy has. */
uint64_t timeline_queue(unsigned group, struct work work);

/* Whether a group has fewer pieces that have not ended than it should have at most: a call may queue some more. */
bool timeline_has_room(unsigned group);
void timeline_wait_for_room(unsigned group);

/* How often half of a group's queue has been filled anew: the ends of the pieces in it are forgotten then. */
uint64_t timeline_half_rounds(unsigned group);

/* The time that this one has become, where its piece has ended. */
uint64_t timeline_known(uint64_t time_ns);

/* Waits until the piece may have ended, or for a moment. */
void timeline_wait(uint64_t time_ns);

/* Calls a function with the true schedule as it is by now, to look at it or to change it: again, when another process
 * has changed it meanwhile. */
typedef void (*timeline_change)(struct schedule *schedule, void *argument);
void timeline_do(timeline_change change, void *argument);

/* A group's work goes away. */
void timeline_drop(unsigned group);

/* In a process that has just got its slot. */
void timeline_join(void);

/* In a forked child, which has no state any more. */
void timeline_leave_after_fork(void);
