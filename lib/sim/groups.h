/*
 * Channel groups: what a context queues its work in, and what a device runs one after the other (timeline.h). A group
 * that has a channel that is off does not run. How often each was taken off is counted: so often it has to be put back.
 */
#pragma once

#include "schedule.h"

#define GROUP_NONE STATE_MAX_GROUPS

enum group_engine { ENGINE_COMPUTE = 1, ENGINE_COPY = 11 };

/* A new group of a process, among those of an MPS server (0: none); GROUP_NONE when there is no room. */
unsigned group_new(uint64_t owner, uint64_t leader, enum group_engine engine, unsigned device_row, uint32_t parent,
                   uint32_t handle);

/* Its channels and its work go with it. */
void group_delete(unsigned row);

/* A process's group with that handle; GROUP_NONE: none. */
unsigned group_find(uint64_t owner, uint32_t handle);

/* The group of a copy engine that makes the copies of a group; GROUP_NONE: none. */
unsigned group_of_copies(unsigned row);

/* Visits the groups of a process. */
typedef void (*group_visitor)(unsigned row, struct state_group *group, void *argument);
void groups_visit(uint64_t owner, group_visitor visit, void *argument);

/* Adds a channel; false when it has as many as it may. Removes one; false when it is not the group's. */
bool group_add_channel(unsigned row, uint32_t handle);
bool group_remove_channel(unsigned row, uint32_t handle);

/* The place of a channel in its group; STATE_GROUP_CHANNELS: it is not there. */
unsigned group_find_channel(const struct state_group *group, uint32_t handle);

/* In a schedule: switches channels, a bit for each place, off or on; and whether the group has work. */
void group_turn(struct schedule *schedule, unsigned row, unsigned channels, bool off);
bool group_is_busy(struct schedule *schedule, unsigned row);

/* Sets for how long its device runs it at a time and, where it is an MPS server's client, the server's other clients.
 */
void group_set_slice(unsigned row, uint64_t slice_ns);

/* All of this process goes to other devices: from each row to the one in the list. Its work has ended. */
void groups_move(const unsigned rows[SIM_MAX_DEVICES]);
