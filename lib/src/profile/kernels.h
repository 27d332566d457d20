/*
 * Kernels by name, in the profile: how often each was launched, and its GPU time. And what is launched, as far as that
 * tells how long it takes: a kernel with a size of grid, or a graph.
 */
#ifndef VGPU_PROFILE_KERNELS_H
#define VGPU_PROFILE_KERNELS_H

#include "profile/records.h"

#include <stdatomic.h>

struct profile_work {
  _Atomic uint64_t key;     /* 0: free */
  _Atomic uint32_t kernel;  /* in the file */
  _Atomic uint32_t begun;   /* launches, for the choice of those that are measured alone */
  _Atomic uint32_t learned; /* from so many that are certain */
  _Atomic int64_t usual_ns; /* 0: not known yet */
};

/* From now on kernels are counted there. NULL: nowhere. */
void profile_kernels_use(struct profile_disk *disk);

/* Finds what is known of a kernel with such a key, or NULL: then the caller names it, by a text of any length or, with
 * NULL, by its address. All that find no room share one work. */
struct profile_work *profile_kernels_find(uint64_t key);
struct profile_work *profile_kernels_name(uint64_t key, const char *name);

/* The same for a graph, which has no name. */
struct profile_work *profile_kernels_graph(uint64_t key);

/* Forgets the kernels: those of a module go, and others may get their handles. */
void profile_kernels_forget(void);

/* Notes that a launch of such work took so long, or nearly so: an uncertain figure is forgotten at the next certain
 * one. Other work may have taken its place by now. */
void profile_kernels_learn(struct profile_work *work, uint64_t key, int64_t took_ns, bool is_certain);

void profile_kernels_add_time(uint32_t kernel, int64_t gpu_ns);

#endif
