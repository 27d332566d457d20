#include "busy.h"

#include "timeline.h"

#define WINDOW_BUCKETS (NS_PER_S / STATE_BUCKET_NS)

void busy_record(struct state_process_device *own, uint64_t start_ns, uint64_t end_ns) {
  if (end_ns - start_ns > STATE_BUCKETS * STATE_BUCKET_NS) /* only the last of it fits in the ring */
    start_ns = end_ns - STATE_BUCKETS * STATE_BUCKET_NS;
  while (start_ns < end_ns) {
    uint64_t number = start_ns / STATE_BUCKET_NS;
    uint64_t until_ns = min_u64(end_ns, (number + 1) * STATE_BUCKET_NS);
    _Atomic uint64_t *bucket = &own->busy[number % STATE_BUCKETS];
    uint64_t before = atomic_load_explicit(bucket, memory_order_relaxed);
    uint64_t busy_ns = before >> 32 == (uint32_t)number ? before & UINT32_MAX : 0;
    busy_ns += until_ns - start_ns;
    atomic_store_explicit(bucket, number << 32 | busy_ns, memory_order_relaxed);
    start_ns = until_ns;
  }
}

struct window {
  uint64_t now_ns;
  uint64_t busy_ns;
};

/* The buckets of the last second: the oldest and the newest count in part. */
static void add_busy(unsigned slot, struct state_process_device *use, void *argument) {
  struct window *window = argument;
  (void)slot;
  uint64_t newest = window->now_ns / STATE_BUCKET_NS;
  uint64_t into_newest_ns = window->now_ns % STATE_BUCKET_NS;
  for (uint64_t i = 0; i <= WINDOW_BUCKETS && i <= newest; i++) {
    uint64_t bucket = atomic_load_explicit(&use->busy[(newest - i) % STATE_BUCKETS], memory_order_relaxed);
    if (bucket >> 32 != (uint32_t)(newest - i))
      continue;
    uint64_t busy_ns = bucket & UINT32_MAX;
    if (i == WINDOW_BUCKETS)
      busy_ns = busy_ns * (STATE_BUCKET_NS - into_newest_ns) / STATE_BUCKET_NS;
    window->busy_ns += busy_ns;
  }
}

static unsigned percent(struct window window) {
  return (unsigned)min_u64(100, (window.busy_ns * 100 + NS_PER_S / 2) / NS_PER_S);
}

unsigned busy_percent_of(unsigned device, unsigned slot) {
  struct window window = {.now_ns = timeline_advance()};
  add_busy(slot, state_of_slot(slot, device), &window);
  return percent(window);
}

unsigned busy_percent(unsigned device) {
  struct window window = {.now_ns = timeline_advance()};
  state_visit_live(device, add_busy, &window);
  return percent(window);
}
