/*
 * Channel groups: what a context queues its work in, and what a device runs one after the other (timeline.h). A group
 * that has a channel that is off does not run. All is done with the timeline's lock.
 */
#ifndef SIM_GROUPS_H
#define SIM_GROUPS_H

#include "state.h"

#define GROUP_NONE STATE_MAX_GROUPS

/* A new group of a process; GROUP_NONE when there is no room. */
unsigned group_new(unsigned slot, unsigned device_row, enum state_engine_type type);

/* Its channels and its work go with it. */
void group_delete(unsigned row);

/* A process's group with that handle; GROUP_NONE: none. */
unsigned group_find(unsigned slot, uint32_t handle);

/* Visits the groups of a process. */
typedef void (*group_visitor)(unsigned row, struct state_group *group, void *argument);
void groups_visit(unsigned slot, group_visitor visit, void *argument);

/* All of a process goes to other devices: from each row to the one in the list. Its work has ended. */
void groups_move(unsigned slot, const unsigned rows[SIM_MAX_DEVICES]);

/* Whether it has work that has not ended. */
bool group_is_busy(const struct state_group *group);

/* Frees the group when its process is dead. */
void groups_forget_if_dead(unsigned row);

/* Frees all groups of dead processes, and those of a dead one that had this process's slot. */
void groups_join(void);

#endif
