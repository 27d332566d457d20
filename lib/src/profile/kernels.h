/*
 * Kernels by name, in the profile: how often each was launched, and its GPU time. And what is launched, as far as that
 * tells how long it takes: a kernel with a size of grid, or a graph.
 */
#pragma once

#include "profile/records.h"

#include <stdatomic.h>

struct profile_work {
  _Atomic uint64_t key;     /* 0: free */
  _Atomic uint32_t kernel;  /* in the file */
  _Atomic uint32_t begun;   /* launches, for the choice of those that are measured alone */
  _Atomic uint32_t learned; /* from so many that are certain */
  _Atomic int64_t usual_ns; /* 0: not known yet */
  _Atomic uint64_t room;    /* blocks that the GPU runs at a time, in 24 bits, and of which size; 0: not asked yet */
};

/* The size of a launch of a kernel; all zeros for a graph. */
struct profile_size {
  uint64_t blocks;
  uint32_t block_threads, shared_bytes; /* of each block */
};

#define PROFILE_FULL 65536 /* the part of the GPU that a launch fills: all of it */

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

/* Is it noted for how many blocks of that size the GPU has room at a time? Work remembers one size. */
bool profile_kernels_knows_room(const struct profile_work *work, const struct profile_size *size);

/* Notes it; 0 blocks: nobody can say. */
void profile_kernels_note_room(struct profile_work *work, const struct profile_size *size, uint64_t blocks);

/* The part of the GPU that a launch fills by that; 0: not known. */
uint32_t profile_kernels_fill(const struct profile_work *work, const struct profile_size *size);

/* Adds GPU time of a kernel that filled the GPU to that part on average. */
void profile_kernels_add_fill(uint32_t kernel, int64_t gpu_ns, double part);
void profile_kernels_add_time(uint32_t kernel, int64_t gpu_ns);
