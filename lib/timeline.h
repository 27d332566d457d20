/* The GPU's clock, read through markers, placed on the wall clock (CLOCK_MONOTONIC). */
#ifndef VGPU_TIMELINE_H
#define VGPU_TIMELINE_H

#include "meter.h"

/* When a completed marker completed. It was recorded at or after recorded_ns and seen complete at observed_ns. A new
 * base makes exact what is measured from it. Sets *kept when the marker has become the timeline's base and must not be
 * recycled; *replaced is then the old base. */
int64_t timeline_place(struct timeline *timeline, const struct meter_driver *driver, void *marker, int64_t recorded_ns,
                       int64_t observed_ns, bool is_new_base, bool *kept, void **replaced);

#endif
