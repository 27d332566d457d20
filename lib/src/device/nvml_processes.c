#include "device/nvml_processes.h"

#include <stdlib.h>

/* A usage file has so many slots. An answer that finds too little room takes as long, and has to be had again. */
#define FEW 1024
#define TRIES 4 /* the list may grow between two questions */

struct nvml_processes_room {
  unsigned size;
  nvmlProcessInfo_t list[];
};

/* The list is asked for again and again: the room for it is kept, and the thread that asks takes it meanwhile. */
static struct nvml_processes_room *spare;

static void keep(struct nvml_processes_room *room) {
  free(__atomic_exchange_n(&spare, room, __ATOMIC_ACQ_REL));
}

/* Yields room for some more: what there was, if it is enough. */
static struct nvml_processes_room *with_room_for(unsigned count, struct nvml_processes_room *room) {
  unsigned size = count + count / 4 + FEW;
  if (room != NULL && room->size > count)
    return room;
  free(room);
  room = malloc(sizeof *room + size * sizeof room->list[0]);
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

static int compare_pids(const void *one, const void *other) {
  unsigned a = ((const nvmlProcessInfo_t *)one)->pid, b = ((const nvmlProcessInfo_t *)other)->pid;
  return (a > b) - (a < b);
}

bool nvml_processes_ask(enum nvml_processes_kind kind, nvmlDevice_t handle, struct nvml_processes *running) {
  struct nvml_processes_room *room = __atomic_exchange_n(&spare, NULL, __ATOMIC_ACQ_REL);
  *running = (struct nvml_processes){.result = NVML_ERROR_INSUFFICIENT_SIZE};
  for (int i = 0; i < TRIES && running->result == NVML_ERROR_INSUFFICIENT_SIZE; i++) {
    room = with_room_for(running->count, room);
    if (room == NULL)
      return false;
    running->count = room->size;
    running->result = asks[kind](handle, &running->count, room->list);
  }
  running->room = room;
  running->list = room->list;
  if (running->result == NVML_SUCCESS)
    qsort(room->list, running->count, sizeof *room->list, compare_pids);
  else
    nvml_processes_done(running);
  return running->result == NVML_SUCCESS;
}

void nvml_processes_done(struct nvml_processes *running) {
  if (running->room != NULL)
    keep(running->room);
  running->room = NULL;
}

static unsigned first_from(const struct nvml_processes *running, unsigned pid) {
  unsigned first = 0, end = running->count;
  while (first < end) {
    unsigned middle = first + (end - first) / 2;
    if (running->list[middle].pid < pid)
      first = middle + 1;
    else
      end = middle;
  }
  return first;
}

bool nvml_processes_find(const struct nvml_processes *running, unsigned pid, uint64_t *bytes) {
  bool found = false;
  *bytes = 0;
  for (unsigned i = first_from(running, pid); i < running->count && running->list[i].pid == pid; i++) {
    found = true;
    if (running->list[i].usedGpuMemory != (unsigned long long)NVML_VALUE_NOT_AVAILABLE)
      *bytes += running->list[i].usedGpuMemory;
  }
  return found;
}
