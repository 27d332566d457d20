#include "spans.h"

#include <stdbool.h>
#include <string.h>

static int64_t min(int64_t a, int64_t b) {
  return a < b ? a : b;
}

/* The first part of the span that has not been charged, and before which remembered one it comes. */
static bool find_left(const struct spans *spans, struct span span, struct span *left, int *before) {
  int i = 0;
  while (i < spans->count && spans->list[i].end_ns <= span.start_ns)
    i++;
  if (i < spans->count && spans->list[i].start_ns <= span.start_ns)
    span.start_ns = spans->list[i++].end_ns;
  *left = (struct span){span.start_ns, i < spans->count ? min(span.end_ns, spans->list[i].start_ns) : span.end_ns};
  *before = i;
  return left->start_ns < left->end_ns;
}

static void take_out(struct spans *spans, int i) {
  spans->count--;
  memmove(&spans->list[i], &spans->list[i + 1], (size_t)(spans->count - i) * sizeof spans->list[0]);
}

static void insert(struct spans *spans, int before, struct span span) {
  bool joins_next = before < spans->count && spans->list[before].start_ns == span.end_ns;
  bool joins_last = before > 0 && spans->list[before - 1].end_ns == span.start_ns;
  if (joins_next)
    span.end_ns = spans->list[before].end_ns;
  if (joins_last)
    span.start_ns = spans->list[before - 1].start_ns;
  if (joins_next)
    take_out(spans, before);
  if (joins_last)
    take_out(spans, --before);
  if (spans->count == SPANS) { /* the earliest is forgotten */
    take_out(spans, 0);
    before -= before > 0;
  }
  memmove(&spans->list[before + 1], &spans->list[before], (size_t)(spans->count - before) * sizeof span);
  spans->list[before] = span;
  spans->count++;
}

int64_t spans_charge(struct spans *spans, struct span span, int64_t busy_ns) {
  int64_t charged_ns = 0;
  struct span left;
  int before;
  while (charged_ns < busy_ns && find_left(spans, span, &left, &before)) {
    left.end_ns = min(left.end_ns, left.start_ns + busy_ns - charged_ns);
    charged_ns += left.end_ns - left.start_ns;
    span.start_ns = left.end_ns;
    insert(spans, before, left);
  }
  return charged_ns;
}
