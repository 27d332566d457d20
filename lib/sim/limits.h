/* The memory limits of cgroups, as drivers have them from r615 on: of the kernel's `misc` kind, which does not nest. A
 * process is held by the nearest cgroup above it that has limits, whatever libraries it has loaded. */
#pragma once

#include "common.h"

#define SIM_NO_LIMIT UINT64_MAX

struct memory_limits {
  uint64_t soft_bytes, hard_bytes; /* 0 and SIM_NO_LIMIT: none */
  uint64_t used_bytes;             /* by the processes in the cgroup */
};

/* Whether the simulated driver has them at all. */
bool limits_exist(void);

/* The limits of a cgroup on a device; false where it has none. */
bool limits_find(unsigned device, uint64_t cgroup, struct memory_limits *limits);

/* Sets them, or takes them away. False where there is no room, or less than what is used would be left. */
bool limits_set(unsigned device, uint64_t cgroup, struct memory_limits limits);

/* The limits that hold the calling process. The caller has the state's lock, or may be wrong by a moment. */
bool limits_of_caller(unsigned device, struct memory_limits *limits);

/* Takes memory of a device for this process; false, and nothing is taken, when the device has not that much or a limit
 * is in the way. state_release() gives it back. */
bool limits_reserve(unsigned device, uint64_t bytes);

/* Memory of a device as the calling process sees it. */
struct memory_view {
  uint64_t total_bytes, free_bytes;
};
struct memory_view limits_view(unsigned device);
