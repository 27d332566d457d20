/* What a launch costs is learned from what was measured. It decides where batches end, and which of the gaps within
 * them are charged (meter_pace.c); the work itself is charged as it was measured. */
#include "meter_parts.h"

#define FORGET_PART 64 /* of an overrun, with each batch */
#define MOST_OVERRUN_PERCENT 300

/* Its own place, or one that is free; or else any. */
static struct meter_cost *place_of(struct meter *meter, uint64_t work) {
  struct meter_cost *costs = meter_costs_of(meter, work), *free = NULL;
  for (int i = 0; i < METER_COST_WAYS; i++) {
    uint64_t found = __atomic_load_n(&costs[i].work, __ATOMIC_RELAXED);
    if (found == work)
      return &costs[i];
    if (found == 0 && free == NULL)
      free = &costs[i];
  }
  uint32_t next = __atomic_fetch_add(&meter->costs_replaced, free == NULL, __ATOMIC_RELAXED);
  return free != NULL ? free : &costs[next % METER_COST_WAYS];
}

static void set_cost(struct meter *meter, uint64_t work, int64_t cost_ns) {
  struct meter_cost *cost = place_of(meter, work);
  __atomic_store_n(&cost->cost_ns, cost_ns > 1 ? cost_ns : 1, __ATOMIC_RELAXED);
  __atomic_store_n(&cost->work, work, __ATOMIC_RELAXED);
}

static void note_overrun(struct meter *meter, int64_t expected_ns, int64_t measured_ns) {
  int64_t percent = expected_ns > 0 ? (measured_ns - expected_ns) * 100 / expected_ns : 0;
  int64_t before = __atomic_load_n(&meter->overrun_percent, __ATOMIC_RELAXED);
  before -= (before + FORGET_PART - 1) / FORGET_PART;
  percent = percent < MOST_OVERRUN_PERCENT ? percent : MOST_OVERRUN_PERCENT;
  __atomic_store_n(&meter->overrun_percent, percent > before ? percent : before, __ATOMIC_RELAXED);
}

void meter_learn(struct meter_stream *stream, const struct batch *batch, int64_t measured_ns) {
  struct meter *meter = stream->meter;
  int64_t known_ns;
  if (!batch->last_is_unknown)
    note_overrun(meter, batch->estimate_ns, measured_ns);
  if (batch->last_is_unknown) /* what the others are not expected to have taken */
    set_cost(meter, batch->last_work, measured_ns - (batch->estimate_ns - METER_UNKNOWN_COST_NS));
  else if (batch->mixed) {
    double scale = meter_scale(stream) * (0.75 + 0.25 * (double)measured_ns / (double)batch->estimate_ns);
    meter_set_scale(stream, scale < 0.125 ? 0.125 : scale > 8 ? 8 : scale);
  } else if (meter_known_cost(meter, batch->last_work, &known_ns)) {
    known_ns = (3 * known_ns + measured_ns / batch->launches) / 4;
    set_cost(meter, batch->last_work, known_ns);
  }
}
