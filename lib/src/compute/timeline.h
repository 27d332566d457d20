/* The GPU's clock, read through markers, placed on the wall clock (CLOCK_MONOTONIC). */
#ifndef VGPU_COMPUTE_TIMELINE_H
#define VGPU_COMPUTE_TIMELINE_H

#include "base/compiler.h"
#include "compute/meter.h"

/* cuEventElapsedTime answers with a float of milliseconds: beyond 4 s its steps pass half a microsecond, the resolution
 * of the GPU's own clock. */
#define TIMELINE_REBASE_NS 4000000000LL

/* When a completed marker completed, between these two times. To hold every marker to that keeps the timeline true in
 * both directions while the two clocks drift apart. The first one counts as early as it can have completed. All of them
 * tell by how much that may be too early; once it is little, time is set forward by so much: if that is too late, the
 * next one that is seen at once sets it back. The marker is recycled, unless it becomes the base of the next ones. */
static inline int64_t timeline_place(struct timeline *timeline, const struct meter_driver *driver, void *marker,
                                     int64_t earliest_ns, int64_t latest_ns) {
  int64_t elapsed_ns = 0, at_ns = latest_ns;
  void *unused = marker;
  bool is_first = timeline->base == NULL;
  if (is_first || driver->elapsed_ns(timeline->base, marker, &elapsed_ns)) {
    int64_t clock_ns = is_first ? earliest_ns : timeline->base_ns + elapsed_ns;
    at_ns = min(max(clock_ns, earliest_ns), latest_ns);
    int64_t early_ns = timeline->early_ns - max(at_ns - clock_ns, 0);
    bool is_new = is_first || early_ns < -METER_LATE_NS; /* or of another GPU, to which the process was moved */
    timeline->early_ns = is_new ? latest_ns - at_ns : min(max(early_ns, 0), latest_ns - at_ns);
    if (timeline->early_ns <= METER_LATE_NS) {
      at_ns += timeline->early_ns;
      timeline->early_ns = 0;
    }
    timeline->base_ns = at_ns - elapsed_ns;
    if (is_first || elapsed_ns > TIMELINE_REBASE_NS) {
      unused = timeline->base;
      timeline->base = marker;
      timeline->base_ns = at_ns;
    }
  }
  if (unused != NULL)
    driver->recycle(unused);
  return at_ns;
}

#endif
