/* The driver's own lists of the processes that run on a device, however long they are, by their PIDs. */
#pragma once

#include "hook/hooks.h"

#include <stdint.h>

enum nvml_processes_kind { NVML_COMPUTE_PROCESSES, NVML_GRAPHICS_PROCESSES, NVML_MPS_PROCESSES };

struct nvml_processes_room;

struct nvml_processes {
  nvmlReturn_t result;
  unsigned count;
  const nvmlProcessInfo_t *list;
  struct nvml_processes_room *room; /* holds the list */
};

/* Asks NVML; false when it does not say. After an answer the list is given back with nvml_processes_done. */
bool nvml_processes_ask(enum nvml_processes_kind kind, nvmlDevice_t handle, struct nvml_processes *running);
void nvml_processes_done(struct nvml_processes *running);

/* The bytes that a process holds by this list; false when it is not in it. */
bool nvml_processes_find(const struct nvml_processes *running, unsigned pid, uint64_t *bytes);
