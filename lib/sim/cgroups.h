/* Cgroups of the v2 hierarchy, known by their ids: a folder's inode, whatever mount or namespace it is seen through. */
#pragma once

#include "common.h"

#define SIM_CGROUP_FOLDER "/sys/fs/cgroup"
#define SIM_CGROUP_DEPTH 6

/* The calling process's cgroup: the kernel's own word, which no mount and no namespace of the caller's can change. 0
 * where the kernel has none, before Linux 6.13. */
uint64_t cgroup_now(void);

/* The calling process's cgroup and those above it, the nearest first; the rest are 0. */
void cgroups_of_caller(uint64_t ids[SIM_CGROUP_DEPTH]);

/* The id of a cgroup's folder; 0 where the path is none. */
uint64_t cgroup_at(const char *path);

/* Whether a cgroup is still there. Where the caller may not ask, it is. */
bool cgroup_exists(uint64_t id);
