#include "device/nvml_processes.h"

#include <stdlib.h>

#define TRIES 4 /* the list may grow between two questions */

struct nvml_processes_room {
  unsigned size;
  nvmlProcessInfo_t list[];
};

/* A long list is asked for again and again: the room for it is kept, and the thread that asks takes it meanwhile. */
static struct nvml_processes_room *spare;

static void keep(struct nvml_processes_room *room) {
  free(__atomic_exchange_n(&spare, room, __ATOMIC_ACQ_REL));
}

static struct nvml_processes_room *room_for(unsigned count) {
  unsigned size = count + count / 4 + NVML_PROCESSES_FEW;
  struct nvml_processes_room *room = malloc(sizeof *room + size * sizeof room->list[0]);
  if (room != NULL)
    room->size = size;
  return room;
}

/* Version 2 has the same layout. Version 3 of the drivers 535.43 to 535.97 writes rows of 32 bytes, past the end of our
 * list; drivers that can list details are newer. */
#define ASK(name)                                                                                                      \
  static nvmlReturn_t ask_##name(nvmlDevice_t handle, unsigned *count, nvmlProcessInfo_t *list) {                      \
    if (hooks_is_missing((void *)real.nvmlDeviceGetRunningProcessDetailList))                                          \
      return real.nvmlDeviceGet##name##RunningProcesses_v2(handle, count, list);                                       \
    return real.nvmlDeviceGet##name##RunningProcesses_v3(handle, count, list);                                         \
  }
ASK(Compute)
ASK(Graphics)
ASK(MPSCompute)

static nvmlReturn_t (*const asks[])(nvmlDevice_t, unsigned *, nvmlProcessInfo_t *) = {
    [NVML_COMPUTE_PROCESSES] = ask_Compute,
    [NVML_GRAPHICS_PROCESSES] = ask_Graphics,
    [NVML_MPS_PROCESSES] = ask_MPSCompute,
};

bool nvml_processes_ask(enum nvml_processes_kind kind, nvmlDevice_t handle, struct nvml_processes *running) {
  running->room = __atomic_exchange_n(&spare, NULL, __ATOMIC_ACQ_REL);
  for (int i = 0; i < TRIES; i++) {
    nvmlProcessInfo_t *list = running->room == NULL ? running->few : running->room->list;
    running->count = running->room == NULL ? NVML_PROCESSES_FEW : running->room->size;
    running->result = asks[kind](handle, &running->count, list);
    running->list = list;
    if (running->result == NVML_SUCCESS)
      return true;
    if (running->result != NVML_ERROR_INSUFFICIENT_SIZE)
      break;
    free(running->room);
    running->room = room_for(running->count);
    if (running->room == NULL)
      return false;
  }
  nvml_processes_done(running);
  return false;
}

void nvml_processes_done(struct nvml_processes *running) {
  if (running->room != NULL)
    keep(running->room);
  running->room = NULL;
}

bool nvml_processes_find(const struct nvml_processes *running, unsigned pid, uint64_t *bytes) {
  bool found = false;
  *bytes = 0;
  for (unsigned i = 0; i < running->count; i++) {
    if (running->list[i].pid != pid)
      continue;
    found = true;
    if (running->list[i].usedGpuMemory != (unsigned long long)NVML_VALUE_NOT_AVAILABLE)
      *bytes += running->list[i].usedGpuMemory;
  }
  return found;
}
