/*
 * Launches of a stream between two markers (timing events). The GPU's clock tells when the markers were done; how long
 * the GPU worked in between follows from when the program launched, and from what such launches usually take.
 */
#pragma once

#include "profile/kernels.h"

#include <stdbool.h>

/* A marker takes a microsecond of the host and some of the GPU: short launches have them together. */
#define PROFILE_GROUP_NS 500000LL
#define PROFILE_GROUP_LAUNCHES 4096
#define PROFILE_GROUP_PARTS 12 /* different ones */

struct profile_part {
  struct profile_work *work;
  uint64_t key;
  uint32_t kernel;
  uint32_t launches;
  int64_t usual_ns; /* the sum over all of them */
  uint32_t fill;    /* the same, of PROFILE_FULL each */
};

struct profile_group {
  int64_t began_ns, returned_ns; /* the call of its first launch */
  int64_t last_ns;               /* when the call of its last launch began */
  int64_t ready_ns;              /* when all would be done if nothing were before it, and took what it usually takes */
  int64_t closed_ns;             /* when the marker behind it had been recorded */
  int64_t usual_ns;              /* the sum over all its launches */
  uint32_t launches, part_count;
  bool is_unknown;    /* a single launch, whose work has not been measured yet */
  bool had_pause;     /* so far as is known, the GPU waited for one of its launches */
  bool has_strangers; /* other threads launched into it unseen */
  struct profile_part parts[PROFILE_GROUP_PARTS];
};

/* The GPU worked for busy_ns of the time from the one to the other. */
struct profile_measure {
  int64_t from_ns, to_ns, busy_ns;
  bool is_sure, is_certain; /* the markers alone tell that, nearly or exactly */
};

/* Is there room for a launch of that work? */
bool profile_group_takes(const struct profile_group *group, const struct profile_work *work);

/* A launch whose call begins now joins the group, and does not if it fails. `fill`: the part of the GPU
 * that it fills. */
void profile_group_join(struct profile_group *group, struct profile_work *work, uint64_t key, uint32_t fill,
                        int64_t now_ns);
void profile_group_take_back(struct profile_group *group, const struct profile_work *work);

/* By when the markers before and behind it were done. */
struct profile_measure profile_group_measure(const struct profile_group *group, int64_t start_ns, int64_t end_ns);

/* Shares out what the group has had of the GPU; where that is all of a sure time, its work is learned. */
void profile_group_settle(const struct profile_group *group, const struct profile_measure *measure, int64_t own_ns);
