/* Kernels by name, in the profile: how often each was launched, and its part of the measured GPU time. */
#ifndef VGPU_PROFILE_KERNELS_H
#define VGPU_PROFILE_KERNELS_H

#include "compute/meter.h"
#include "profile/records.h"

/* From now on kernels are counted there. NULL: nowhere. */
void profile_kernels_use(struct profile_disk *disk);

/* Around a launch by this thread, which counts where it has joined a batch and gone well. False when the function is
 * not known: then it gets a name, of any length; NULL: its address. Function 0 is a graph. */
bool profile_kernels_launch_begins(uint64_t function);
void profile_kernels_name(uint64_t function, const char *name);

static inline void profile_kernels_launch_ends(bool well) {
  if (profile_place.joined && well)
    profile_records_count_launch(profile_place.kernel);
}

/* Forgets the functions: those of a module go, and others may get their handles. */
void profile_kernels_forget(void);

/* Notes that this thread's launch joins a batch, and so much time of it is expected (0: not known). */
void profile_kernels_joined(struct batch *batch, int64_t expected_ns);

/* Splits the time that a batch has taken among its kernels. */
void profile_kernels_measured(const struct batch *batch, int64_t gpu_ns);

#endif
