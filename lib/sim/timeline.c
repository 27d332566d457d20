#include "timeline.h"

#include "state.h"

#define WINDOW_BUCKETS (NS_PER_S / STATE_BUCKET_NS)
#define LONG_WAIT_NS (20 * NS_PER_MS)
#define LOOK_FOR_DEAD_EVERY_NS (5 * NS_PER_MS)

static void record_busy(struct state_process_device *own, uint64_t start_ns, uint64_t end_ns) {
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

/* Another process's work lies before ours for a long time: is that process still there? */
static void look_for_dead(uint64_t now_ns, uint64_t tail_ns, const struct state_process_device *own) {
  static uint64_t last_look_ns;
  if (tail_ns < now_ns + LONG_WAIT_NS || tail_ns == atomic_load(&own->tail_ns) ||
      now_ns < last_look_ns + LOOK_FOR_DEAD_EVERY_NS)
    return;
  last_look_ns = now_ns;
  state_forget_dead_work();
}

uint64_t timeline_queue(unsigned device, uint64_t not_before_ns, uint64_t duration_ns) {
  struct state_device *shared = state_device(device);
  struct state_process_device *own = state_own(device);
  uint64_t now_ns = clock_ns();
  look_for_dead(now_ns, atomic_load(&shared->tail_ns), own);
  uint64_t earliest_ns = max_u64(now_ns, not_before_ns);
  uint64_t tail_ns = atomic_load(&shared->tail_ns);
  uint64_t start_ns;
  do {
    start_ns = max_u64(earliest_ns, tail_ns);
  } while (!atomic_compare_exchange_weak(&shared->tail_ns, &tail_ns, start_ns + duration_ns));
  atomic_store(&own->tail_ns, start_ns + duration_ns);
  record_busy(own, start_ns, start_ns + duration_ns);
  return start_ns + duration_ns;
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
    if (i == 0) /* may reach into the future */
      busy_ns = min_u64(busy_ns, into_newest_ns);
    else if (i == WINDOW_BUCKETS)
      busy_ns = busy_ns * (STATE_BUCKET_NS - into_newest_ns) / STATE_BUCKET_NS;
    window->busy_ns += busy_ns;
  }
}

static unsigned percent(struct window window) {
  return (unsigned)min_u64(100, (window.busy_ns * 100 + NS_PER_S / 2) / NS_PER_S);
}

unsigned timeline_busy_percent_of(unsigned device, unsigned slot) {
  struct window window = {.now_ns = clock_ns()};
  add_busy(slot, state_of_slot(slot, device), &window);
  return percent(window);
}

unsigned timeline_busy_percent(unsigned device) {
  struct window window = {.now_ns = clock_ns()};
  state_visit_live(device, add_busy, &window);
  return percent(window);
}
