/*
 * Spans of time that have been charged: streams that run at the same time pay for the time in which the GPU was busy,
 * once.
 *
 * The latest SPANS are remembered, in order and apart. What lies before the first of them is taken as not charged: a
 * batch that is measured so late is charged in full.
 */
#ifndef VGPU_SPANS_H
#define VGPU_SPANS_H

#include <stdint.h>

#define SPANS 32

struct span {
  int64_t start_ns, end_ns;
};

struct spans {
  struct span list[SPANS];
  int count;
};

/* Of that span the GPU was busy for so long: charges as much of it as is left, the first parts first. Returns how much.
 */
int64_t spans_charge(struct spans *spans, struct span span, int64_t busy_ns);

#endif
