/*
 * The objects that the driver has made for this process, as its calls show: which channels work on which GPU. Only the
 * channels of compute engines are kept; copies go on while those are off.
 */
#ifndef SCHEDULER_OBJECTS_H
#define SCHEDULER_OBJECTS_H

#include "rm.h"

/* Call after each ioctl that has gone well. Costs a comparison where it is not the driver's. */
void objects_note(int file, unsigned long request, const void *argument);

/* The channels of one client on one GPU. */
#define OBJECTS_MOST_CHANNELS 64 /* of a call */
#define OBJECTS_MOST_GROUPS 32
struct objects_gpu {
  struct rm_client client;
  uint32_t device, subdevice;
  uint32_t channel_count, group_count;
  uint32_t channels[OBJECTS_MOST_CHANNELS];
  uint32_t groups[OBJECTS_MOST_GROUPS];
};

/* The GPU after `previous` (0: the first) with channels of compute engines; false: there is none. What is found may
 * be freed by the next call of the driver: a call with a freed handle is refused as a whole. */
bool objects_next(uint32_t *previous, struct objects_gpu *gpu);

/* Changes whenever channels come or go. */
uint32_t objects_generation(void);

#endif
