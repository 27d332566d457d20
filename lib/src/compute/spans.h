/*
 * Spans of time that have been charged: streams that run at the same time pay for the time in which the GPU was busy,
 * once. Only the latest SPANS are remembered, apart from each other: what lies before them is charged in full.
 */
#ifndef VGPU_COMPUTE_SPANS_H
#define VGPU_COMPUTE_SPANS_H

#include "base/compiler.h"

#define SPANS 32

struct span {
  int64_t start_ns, end_ns;
};

struct spans {
  struct span list[SPANS]; /* in no order; an unused one is empty */
};

/* Charges busy_ns of that span, or as much of it as is left: its first parts first. Returns how much. */
static inline int64_t spans_charge(struct spans *spans, struct span span, int64_t busy_ns) {
  struct span *earliest = spans->list, *end = spans->list + SPANS, charged = span;
  int64_t charged_ns = 0, at_ns = span.start_ns;
  while (at_ns < span.end_ns && charged_ns < busy_ns) {
    int64_t until_ns = min(at_ns + busy_ns - charged_ns, span.end_ns), behind_ns = at_ns;
    for (struct span *each = spans->list; each < end; each++)
      if (each->start_ns <= at_ns && each->end_ns > behind_ns)
        behind_ns = each->end_ns;
      else if (each->start_ns > at_ns && each->start_ns < until_ns)
        until_ns = each->start_ns;
    charged_ns += behind_ns > at_ns ? 0 : until_ns - at_ns;
    at_ns = behind_ns > at_ns ? behind_ns : until_ns;
  }
  if (at_ns == span.start_ns)
    return 0;
  charged.end_ns = at_ns;
  for (struct span *each = spans->list; each < end; each++) {
    if (each->end_ns >= charged.start_ns && each->start_ns <= charged.end_ns) { /* they become one */
      charged = (struct span){min(each->start_ns, charged.start_ns), max(each->end_ns, charged.end_ns)};
      *each = (struct span){0};
    }
    earliest = each->end_ns < earliest->end_ns ? each : earliest;
  }
  *earliest = charged;
  return charged_ns;
}

#endif
