#include "limits.h"

#include <stddef.h>
#include <stdlib.h>

#include "cgroups.h"
#include "state.h"

#define FIRST_DRIVER 615

bool limits_exist(void) {
  return strtoul(sim_config.driver_version, NULL, 10) >= FIRST_DRIVER;
}

static struct state_limit *find(unsigned device, uint64_t cgroup) {
  struct state_limit *limits = state_limits();
  for (unsigned i = 0; cgroup && i < STATE_MAX_LIMITS; i++)
    if (limits[i].cgroup == cgroup && limits[i].device_row == state_row(device))
      return &limits[i];
  return NULL;
}

static bool has_limits(unsigned device, uint64_t cgroup) {
  return find(device, cgroup) != NULL;
}

/* The cgroup whose limits hold a process: the nearest one that has some; 0 for none. */
static uint64_t holding(unsigned device, const uint64_t *cgroups) {
  for (unsigned i = 0; i < SIM_CGROUP_DEPTH; i++)
    if (has_limits(device, cgroups[i]))
      return cgroups[i];
  return 0;
}

struct sum {
  unsigned device;
  uint64_t cgroup, bytes;
};

static bool is_in(const uint64_t *cgroups, uint64_t cgroup) {
  for (unsigned i = 0; i < SIM_CGROUP_DEPTH; i++)
    if (cgroups[i] == cgroup)
      return true;
  return false;
}

static void add(unsigned slot, struct state_process_device *use, void *argument) {
  struct sum *sum = argument;
  if (is_in(state_cgroups(slot), sum->cgroup))
    sum->bytes += atomic_load(&use->used_bytes);
}

static uint64_t used_bytes(unsigned device, uint64_t cgroup) {
  struct sum sum = {device, cgroup, 0};
  state_visit_holders(device, add, &sum);
  return sum.bytes;
}

bool limits_find(unsigned device, uint64_t cgroup, struct memory_limits *limits) {
  const struct state_limit *found = find(device, cgroup);
  if (found)
    *limits = (struct memory_limits){found->soft_bytes, found->hard_bytes, used_bytes(device, cgroup)};
  return found;
}

/* A row of a cgroup that is gone is free: its limits went with it. */
static struct state_limit *free_row(void) {
  struct state_limit *limits = state_limits();
  for (unsigned i = 0; i < STATE_MAX_LIMITS; i++)
    if (!limits[i].cgroup || !cgroup_exists(limits[i].cgroup))
      return &limits[i];
  return NULL;
}

static bool set(unsigned device, uint64_t cgroup, struct memory_limits limits) {
  struct state_limit *row = find(device, cgroup);
  if (limits.hard_bytes == SIM_NO_LIMIT && limits.soft_bytes == 0) {
    if (row)
      *row = (struct state_limit){0};
    return true;
  }
  if (used_bytes(device, cgroup) > limits.hard_bytes || !(row = row ? row : free_row()))
    return false;
  *row = (struct state_limit){cgroup, state_row(device), 0, limits.soft_bytes, limits.hard_bytes};
  return true;
}

bool limits_set(unsigned device, uint64_t cgroup, struct memory_limits limits) {
  if (!state_make_room(offsetof(struct state, limits), STATE_MAX_LIMITS * sizeof(struct state_limit)))
    return false;
  state_lock();
  bool is_set = set(device, cgroup, limits);
  state_unlock();
  return is_set;
}

bool limits_of_caller(unsigned device, struct memory_limits *limits) {
  return limits_exist() && limits_find(device, holding(device, state_own_cgroups()), limits);
}

bool limits_reserve(unsigned device, uint64_t bytes) {
  uint64_t total = sim_config.devices[device].memory_bytes;
  state_lock();
  uint64_t used = state_used_bytes(device);
  struct memory_limits limits;
  bool fits = used <= total && bytes <= total - used;
  if (fits && limits_of_caller(device, &limits))
    fits = limits.used_bytes <= limits.hard_bytes && bytes <= limits.hard_bytes - limits.used_bytes;
  if (fits) {
    atomic_fetch_add(&state_own(device)->used_bytes, bytes);
    state_device(device)->peak_bytes = max_u64(state_device(device)->peak_bytes, used + bytes);
  }
  state_unlock();
  return fits;
}

struct memory_view limits_view(unsigned device) {
  struct memory_limits limits;
  uint64_t total = sim_config.devices[device].memory_bytes;
  struct memory_view view = {total, total - min_u64(total, state_used_bytes(device))};
  if (limits_of_caller(device, &limits) && limits.hard_bytes < total) {
    view.total_bytes = limits.hard_bytes;
    view.free_bytes = min_u64(view.free_bytes, limits.hard_bytes - min_u64(limits.hard_bytes, limits.used_bytes));
  }
  return view;
}
