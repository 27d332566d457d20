/* The processes that hold memory of a device, for the files that list them. */
#pragma once

#include "nvml_handles.h"
#include "state.h"

enum processes_kind { PROCESSES_ALL, PROCESSES_MPS };

struct processes {
  unsigned count;
  struct state_holder list[STATE_MAX_PROCESSES];
};

/* Finds the device behind the handle and its processes. As NVML does: a buffer for fewer than there are gets the number
 * that is needed. */
nvmlReturn_t nvml_list_processes(nvmlDevice_t handle, enum processes_kind kind, unsigned *device, unsigned *count,
                                 const void *infos, struct processes *processes);
