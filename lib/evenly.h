/*
 * Even parts for processes that wait for the tokens of one bucket, and for the threads of a process on streams of their
 * own: of those that wait, the one that has had the least of the GPU goes first.
 *
 * Who waits says so in one of VGPU_WAITERS places, for a process in the usage file: who it is, how much it has had, and
 * when it will look at the bucket next. That is believed until a little after that time: so one that is killed or
 * stopped while it waits holds the others up for a moment, once. Who finds no place is served as it comes. A place
 * changes hands by compare-and-swap.
 */
#ifndef VGPU_EVENLY_H
#define VGPU_EVENLY_H

#include "abi.h"

#include <stdbool.h>

#define EVENLY_LONGEST_SLEEP_NS 50000000LL /* between two looks of one that waits */
#define EVENLY_LATE_NS 20000000LL          /* how late the next look of one that is alive may be */
#define EVENLY_CREDIT_NS 20000000LL        /* who was away has had less than the others by this much, at most */
/* Nobody makes way for longer while there are tokens: whoever goes first may be waiting for more of them. */
#define EVENLY_PATIENCE_NS 100000000LL

/* Of the others that wait, the one that has had the least; false when none does. */
bool evenly_first(const struct vgpu_waiter *places, uint64_t owner, int64_t now_ns, struct vgpu_waiter *first);

/* The owner waits. Returns its place: what the last call returned, at first -1. Of the threads of a process one has a
 * place for all. */
int evenly_wait(struct vgpu_waiter *places, int place, const struct vgpu_waiter *waiter, int64_t now_ns);

/* And waits no more. */
void evenly_leave(struct vgpu_waiter *places, int place, uint64_t owner);

#endif
