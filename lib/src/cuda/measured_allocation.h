/*
 * Things whose memory the driver does not tell beforehand: they are made, NVML is asked what the process holds then,
 * and what passes the limit is undone and refused. They are counted as overhead.
 */
#ifndef VGPU_MAKING_H
#define VGPU_MAKING_H

#include "cuda/memory.h"

struct making {
  struct device *device; /* NULL: not limited */
  uint64_t held_before;
  uint64_t reserved_bytes;
};

/* The device of the current context, if this process is limited; else NULL. */
struct device *making_device(void);

/* Before the driver's call. What is surely needed is reserved meanwhile, so that something large does not come into
 * being at all. */
CUresult making_begin(struct making *making, struct device *device, uint64_t at_least_bytes);

/* After it: does what was made have to be undone? */
bool making_passes_limit(const struct making *making, CUresult result);

/* After that was undone: the answer to the program. */
CUresult making_refuse(const struct making *making);

/* After something of this kind was given back. */
CUresult making_undone(struct device *device, CUresult result);

#endif
