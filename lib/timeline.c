#include "timeline.h"

#include <stddef.h>

/* cuEventElapsedTime answers with a float of milliseconds: beyond 4 s its steps pass half a microsecond, the resolution
 * of the GPU's own clock. */
#define REBASE_NS 4000000000LL

int64_t timeline_place(struct timeline *timeline, const struct meter_driver *driver, void *marker, int64_t recorded_ns,
                       int64_t observed_ns, bool is_new_base, bool *kept, void **replaced) {
  int64_t elapsed_ns = 0;
  *kept = false;
  *replaced = NULL;
  bool first = timeline->base == NULL;
  if (!first && !driver->elapsed_ns(timeline->base, marker, &elapsed_ns))
    return observed_ns;

  int64_t gpu_ns = timeline->base_gpu_ns + elapsed_ns;
  int64_t wall_ns = gpu_ns + timeline->offset_ns;
  /* A marker completes after it was recorded and before it was seen. Holding every marker to that keeps the offset
   * true in both directions while the two clocks drift apart. */
  if (first || wall_ns < recorded_ns)
    wall_ns = recorded_ns;
  else if (wall_ns > observed_ns)
    wall_ns = observed_ns;
  timeline->offset_ns = wall_ns - gpu_ns;

  if (first || is_new_base || elapsed_ns > REBASE_NS) {
    *replaced = timeline->base;
    timeline->base = marker;
    timeline->base_gpu_ns = gpu_ns;
    *kept = true;
  }
  return wall_ns;
}
