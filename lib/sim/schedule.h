/*
 * How devices share their time: each runs one group after the other for a time slice each, and the work of a group in
 * the order in which it was queued. All functions compute on a schedule of the caller's own, and write nothing else
 * (shared_schedule.h makes one true).
 */
#pragma once

#include "state.h"

/* Lets the devices do what they do until then. False when the effects are full before that. */
bool schedule_advance(struct schedule *schedule, uint64_t now_ns);

/* A group's entry; NULL: it has no work, has had none for a second, and is on. */
struct schedule_group *schedule_find(struct schedule *schedule, unsigned row);

/* The same; the group gets one where it has none. */
struct schedule_group *schedule_get(struct schedule *schedule, unsigned row);

/* The group has the next piece of work, whose number that is. */
void schedule_queue(struct schedule *schedule, unsigned row, uint64_t number);

/* The group and all its work go. */
void schedule_remove(struct schedule *schedule, unsigned row);

/* Entries that say nothing go, and those of dead processes. */
void schedule_sweep(struct schedule *schedule);

/* The group's context leaves the device, if it is there. */
void schedule_unload(struct schedule *schedule, unsigned row);

/* The device takes the next group, and this one again when its turn comes. */
void schedule_preempt(struct schedule *schedule, unsigned row);

/* The earliest time at which a piece that has not ended may; 0 where nobody can tell. */
uint64_t schedule_may_end_at(struct schedule *schedule, uint64_t name);

/* For how long a device worked in a span of little more than the last second, for one slot or, with STATE_NO_SLOT, for
 * all. */
struct span {
  uint64_t begin_ns, end_ns;
};
uint64_t schedule_busy_ns(const struct schedule *schedule, unsigned device_row, unsigned slot, struct span span);
