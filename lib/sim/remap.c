#include "remap.h"

#include <string.h>

#include "cards.h"
#include "groups.h"

#define NONE SIM_MAX_DEVICES

static unsigned find(const char uuid[16]) {
  for (unsigned device = 0; device < sim_config.device_count; device++) {
    unsigned char bytes[16];
    config_uuid_bytes(&sim_config.devices[device], bytes);
    if (memcmp(bytes, uuid, sizeof bytes) == 0)
      return device;
  }
  return NONE;
}

/* All but its UUID, its memory and how fast it copies. */
static bool is_same_kind(const struct device_config *a, const struct device_config *b) {
  return strcmp(a->name, b->name) == 0 && a->compute_capability == b->compute_capability &&
         a->multiprocessors == b->multiprocessors && a->context_overhead_bytes == b->context_overhead_bytes &&
         a->launch_queue_depth == b->launch_queue_depth && a->mig_gpu == 0 && b->mig_gpu == 0;
}

/* from[i]: the device that comes to where i is. */
static bool read_pairs(const struct state_gpu_pair *pairs, unsigned count, unsigned from[SIM_MAX_DEVICES]) {
  bool taken[SIM_MAX_DEVICES] = {false};
  for (unsigned device = 0; device < SIM_MAX_DEVICES; device++)
    from[device] = NONE;
  for (unsigned i = 0; i < count; i++) {
    unsigned old = find(pairs[i].old_uuid), new = find(pairs[i].new_uuid);
    if (old == NONE || new == NONE || from[old] != NONE || taken[new] ||
        (old != new && !is_same_kind(&sim_config.devices[old], &sim_config.devices[new])))
      return false;
    from[old] = new;
    taken[new] = true;
  }
  for (unsigned device = 0; device < sim_config.device_count; device++) {
    if (from[device] == NONE && !is_instance(device))
      return false;
    if (from[device] == NONE)
      from[device] = device;
  }
  return true;
}

bool remap_devices(const struct state_gpu_pair *pairs, unsigned count) {
  struct device_config devices[SIM_MAX_DEVICES];
  unsigned from[SIM_MAX_DEVICES], rows[SIM_MAX_DEVICES];
  uint64_t bytes[SIM_MAX_DEVICES];
  if (count == 0)
    return true;
  if (count > SIM_MAX_DEVICES || !read_pairs(pairs, count, from))
    return false;
  for (unsigned device = 0; device < sim_config.device_count; device++)
    bytes[device] = atomic_exchange(&state_own(device)->checkpointed_bytes, 0);
  memcpy(devices, sim_config.devices, sizeof devices);
  for (unsigned device = 0; device < sim_config.device_count; device++)
    sim_config.devices[device] = devices[from[device]];
  for (unsigned row = 0; row < SIM_MAX_DEVICES; row++)
    rows[row] = row;
  for (unsigned device = 0; device < sim_config.device_count; device++)
    rows[state_row(device)] = state_row(from[device]);
  groups_move(rows);
  state_remap_devices(from);
  for (unsigned device = 0; device < sim_config.device_count; device++)
    atomic_store(&state_own(device)->checkpointed_bytes, bytes[device]);
  return true;
}
