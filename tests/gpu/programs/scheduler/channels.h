/* The way of the GPU's scheduler with this process's channels. */
#ifndef SCHEDULER_CHANNELS_H
#define SCHEDULER_CHANNELS_H

#include "objects.h"

#define CHANNELS_DEFAULT_SLICE_US 2048

/* Takes the channels off the GPU, in the middle of a kernel, or puts them back. Returns when none runs any more. */
uint32_t channels_switch(const struct objects_gpu *gpu, bool off);

/* Sets for how long each group has the GPU at a time while others want it too. */
uint32_t channels_set_slice(const struct objects_gpu *gpu, uint64_t slice_us);
uint32_t channels_slice_us(const struct objects_gpu *gpu, uint64_t *slice_us);

/* RM_BUSY, RM_OK for idle, or what went wrong. */
uint32_t channels_ask_busy(const struct objects_gpu *gpu);

/* The number by which records of context switches name the channel. */
uint32_t channels_context_number(const struct objects_gpu *gpu, uint32_t channel, uint32_t *number);

/* "GPU-..." of the GPU. */
#define CHANNELS_UUID_BYTES 256
uint32_t channels_uuid(const struct objects_gpu *gpu, char uuid[CHANNELS_UUID_BYTES]);

/* The GPU's clock, in nanoseconds. */
uint32_t channels_gpu_time(const struct objects_gpu *gpu, int64_t *time_ns);

#endif
