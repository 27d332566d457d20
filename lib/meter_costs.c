/* What a launch costs is learned from what was measured. It decides where batches end, what they pay in advance, and
 * what they took where the GPU may have waited for the host in between. */
#include "meter_parts.h"

/* Of a mean, in which the latest counts so little: work of one name may take now more, now less. */
#define MOST_SEEN 16

/* Its own place, or one that is free; or else any. */
static struct meter_cost *place_of(struct meter *meter, uint64_t work) {
  struct meter_cost *costs = meter_costs_of(meter, work), *unused = NULL;
  for (int i = 0; i < METER_COST_WAYS; i++) {
    uint64_t found = get(costs[i].work);
    if (found == work)
      return &costs[i];
    if (found == 0 && unused == NULL)
      unused = &costs[i];
  }
  return unused != NULL ? unused : &costs[add(meter->costs_replaced, 1) % METER_COST_WAYS];
}

/* Threads may race here: a wrong cost is learned anew. */
void meter_learn(struct meter *meter, const struct batch *batch, int64_t busy_ns) {
  if (batch->is_mixed || (!batch->is_unknown && busy_ns == batch->estimate_ns))
    return;
  struct meter_cost *cost = place_of(meter, batch->work);
  bool is_new = get(cost->work) != batch->work;
  int64_t latest_ns = busy_ns / batch->launches, known_ns = is_new ? latest_ns : get(cost->cost_ns);
  uint32_t seen = is_new ? 1 : (uint32_t)min(get(cost->seen) + 1, MOST_SEEN);
  set(cost->cost_ns, max(known_ns + (latest_ns - known_ns) / seen, 1));
  set(cost->seen, seen);
  set(cost->work, batch->work);
}
