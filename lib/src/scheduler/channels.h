/*
 * The objects that the driver has made for this process, as its calls show: which channels work on which GPU. Only the
 * channels of compute engines are kept; copies go on while those are off.
 */
#pragma once

#include "scheduler/rm.h"

/* Call after each ioctl that has gone well. Costs a comparison where it is not the driver's. */
void channels_note(int file, unsigned long request, const void *argument);

/* The channels of one client on one GPU. */
#define CHANNELS_MOST_CHANNELS 512 /* of 64 contexts */
#define CHANNELS_MOST_GROUPS 64
struct channels {
  struct rm_client client;
  uint32_t device, subdevice;
  bool has_file;    /* that by which it was made is open */
  bool is_in_reach; /* and all of its channels are listed here */
  uint32_t channel_count, group_count;
  uint32_t channels[CHANNELS_MOST_CHANNELS];
  uint32_t groups[CHANNELS_MOST_GROUPS];
};

/* The GPU after `previous` (0: the first) with channels of compute engines; false: there is none. What is found may
 * be freed by the next call of the driver: a call with a freed handle is refused as a whole, or up to the 64 channels
 * in which it is. */
bool channels_next(uint32_t *previous, struct channels *gpu);

/* Changes whenever channels come or go. */
uint32_t channels_generation(void);

/* Call in a forked child, which has none of them. */
void channels_forget(void);

/* Takes the channels off the GPU, in the middle of a kernel, or puts them back. Returns when none runs any more. The
 * driver counts how often each was taken off, and who else has (root's guard) puts back its own: so one that is off by
 * us is left as it is, and so is one that is not. */
uint32_t channels_switch(const struct channels *gpu, bool off);

/* Sets for how long each group has the GPU at a time while others want it too. */
uint32_t channels_set_slice(const struct channels *gpu, uint64_t slice_us);
uint32_t channels_slice_us(const struct channels *gpu, uint64_t *slice_us);

/* RM_BUSY, RM_OK for idle, or what went wrong. */
uint32_t channels_ask_busy(const struct channels *gpu);

/* The number by which records of context switches name the channel. */
uint32_t channels_context_number(const struct channels *gpu, uint32_t channel, uint32_t *number);

/* "GPU-..." of the GPU. */
#define CHANNELS_UUID_BYTES 256
uint32_t channels_uuid(const struct channels *gpu, char uuid[CHANNELS_UUID_BYTES]);

/* The GPU's clock, in nanoseconds. */
uint32_t channels_gpu_time(const struct channels *gpu, int64_t *time_ns);
