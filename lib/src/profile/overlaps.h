/*
 * The times for which the GPU has been counted: streams that work at the same time are counted once. Of a time that
 * overlaps others, what is left is its own. Where all are added by their ends, whoever ended first has had the GPU,
 * and whoever ended later has waited meanwhile.
 *
 * The latest OVERLAPS are remembered apart from each other; of what lies before them, only how much of it was counted.
 */
#pragma once

#include "base/compiler.h"

#include <string.h>

#define OVERLAPS 256

struct overlap {
  int64_t start_ns, end_ns;
};

struct overlaps {
  struct overlap before; /* the time before the list */
  int64_t before_ns;     /* so much of it was counted, evenly */
  uint32_t count;
  struct overlap list[OVERLAPS]; /* by time, apart from each other */
};

static inline int64_t overlap_of(struct overlap a, struct overlap b) {
  return max(min(a.end_ns, b.end_ns) - max(a.start_ns, b.start_ns), 0);
}

/* Half of them at once, since the others are moved. */
static inline void overlaps_forget(struct overlaps *overlaps) {
  struct overlap *list = overlaps->list;
  if (overlaps->before.end_ns == 0)
    overlaps->before.start_ns = list[0].start_ns;
  for (uint32_t i = 0; i < OVERLAPS / 2; i++)
    overlaps->before_ns += list[i].end_ns - list[i].start_ns;
  overlaps->before.end_ns = list[OVERLAPS / 2].start_ns;
  overlaps->count -= OVERLAPS / 2;
  memmove(list, list + OVERLAPS / 2, overlaps->count * sizeof *list);
}

/* So much of that time was counted before the list. */
static inline int64_t overlaps_before(const struct overlaps *overlaps, struct overlap time) {
  int64_t all_ns = overlaps->before.end_ns - overlaps->before.start_ns;
  if (all_ns <= 0)
    return 0;
  return (int64_t)((double)overlap_of(overlaps->before, time) * (double)overlaps->before_ns / (double)all_ns);
}

/* Counts that time. Returns how much of it had not been counted. */
static inline int64_t overlaps_add(struct overlaps *overlaps, struct overlap time) {
  struct overlap *list = overlaps->list;
  if (time.end_ns <= time.start_ns)
    return 0;
  if (overlaps->count == OVERLAPS)
    overlaps_forget(overlaps);
  int64_t own_ns = time.end_ns - time.start_ns - overlaps_before(overlaps, time);
  uint32_t after = overlaps->count, first;
  while (after > 0 && list[after - 1].start_ns > time.end_ns)
    after--;
  struct overlap all = time;
  for (first = after; first > 0 && list[first - 1].end_ns >= time.start_ns; first--) {
    own_ns -= overlap_of(list[first - 1], time);
    all = (struct overlap){min(list[first - 1].start_ns, all.start_ns), max(list[first - 1].end_ns, all.end_ns)};
  }
  memmove(&list[first + 1], &list[after], (overlaps->count - after) * sizeof *list);
  list[first] = all;
  overlaps->count += 1 - (after - first);
  return own_ns;
}
