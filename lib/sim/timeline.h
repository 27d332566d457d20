/*
 * Time on the devices. Work is a piece in the queue of a channel group (groups.h), and runs as time passes: each device
 * runs one group after the other for a time slice each, and the work of a group in the order in which it was queued.
 * No thread does that: whoever looks first lets the devices do what they have done since the last look.
 *
 * A time that is not known yet is the name of the piece with whose end it comes, and later than all that are known. Of
 * two such times of one group the greater is the later one.
 */
#ifndef SIM_TIMELINE_H
#define SIM_TIMELINE_H

#include "state.h"

struct work {
  uint64_t after, after_ns; /* it begins no earlier than that time, and so long after it */
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

/* The piece that a time names, and of which group. */
bool timeline_is_piece(uint64_t time_ns);
unsigned timeline_group_of(uint64_t time_ns);

/* A copy may end before work that was queued before it, while its group is off: when all of that has ended as well. */
bool timeline_is_copy(uint64_t time_ns);
uint64_t timeline_with_all_before(uint64_t time_ns);

/* The time that this one has become, where its piece has ended. */
uint64_t timeline_known(uint64_t time_ns);

/* Waits until the piece may have ended, or for a moment. */
void timeline_wait(uint64_t time_ns);

/* Lets the devices do what they have done by now; returns now. */
uint64_t timeline_advance(void);

/* The same, and holds the lock, which is let go of when its holder dies. */
uint64_t timeline_lock(void);
void timeline_unlock(void);

/* With the lock: a group's work goes away, and the group may run or may not any more. */
void timeline_drop(unsigned group);
void timeline_preempt(unsigned group);

/* In a process that has just got its slot: the process that had it may have died with the lock. */
void timeline_join(void);

#endif
