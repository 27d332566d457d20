/* The driver's own lists of the processes that run on a device, however long they are. */
#ifndef VGPU_RUNNING_H
#define VGPU_RUNNING_H

#include "hook/hooks.h"

#include <stdint.h>

#define RUNNING_FEW 128

enum running_kind { RUNNING_COMPUTE, RUNNING_GRAPHICS, RUNNING_MPS };

struct running_room;

struct running {
  nvmlReturn_t result;
  unsigned count;
  const nvmlProcessInfo_t *list;
  struct running_room *room; /* where the list is when it is long */
  nvmlProcessInfo_t few[RUNNING_FEW];
};

/* Asks NVML; false when it does not say. After an answer the list is given back with running_done. */
bool running_ask(enum running_kind kind, nvmlDevice_t handle, struct running *running);
void running_done(struct running *running);

/* What a process holds by this list; false when it is not in it. */
bool running_find(const struct running *running, unsigned pid, uint64_t *bytes);

#endif
