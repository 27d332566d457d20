#include "shared/history.h"

#include "base/compiler.h"

#define US 1000LL
#define S 1000000000LL
#define S_IN_US 1000000LL
#define LONGEST_NS ((VGPU_SECONDS - 1) * S) /* older seconds have lost their entries to younger ones */

/* Differences of whole microseconds of the clock: no part of one is lost between intervals that follow one another. */
static uint32_t microseconds(int64_t start_ns, int64_t end_ns) {
  return (uint32_t)(end_ns / US - start_ns / US);
}

/* An entry of another second is an old one, or damage: either way it ends here. */
static void add_to_second(uint64_t *entry, uint32_t second, uint32_t busy_us) {
  int64_t sum_us = (int64_t)busy_us + (*entry >> 32 == second ? (uint32_t)*entry : 0);
  __atomic_store_n(entry, (uint64_t)second << 32 | (uint64_t)min(sum_us, S_IN_US), __ATOMIC_RELAXED);
}

void busy_history_add(struct vgpu_device_shared *device, int64_t start_ns, int64_t end_ns) {
  start_ns = max(start_ns, end_ns - LONGEST_NS);
  while (start_ns >= 0 && start_ns < end_ns) {
    int64_t second = start_ns / S, until_ns = min(end_ns, (second + 1) * S);
    add_to_second(&device->seconds[second % VGPU_SECONDS], (uint32_t)second, microseconds(start_ns, until_ns));
    start_ns = until_ns;
  }
}

/* ---- for readers ------------------------------------------------------------------------------------------------- */

/* An entry of another second is old, and says that nothing was charged in this one. */
static int64_t busy_us(const struct vgpu_device_shared *device, int64_t second) {
  uint64_t entry = __atomic_load_n(&device->seconds[second % VGPU_SECONDS], __ATOMIC_RELAXED);
  return entry >> 32 == (uint32_t)second ? min((uint32_t)entry, S_IN_US) : 0;
}

unsigned utilization_of_limit(unsigned percent, uint32_t limit_percent) {
  if (limit_percent == 0 || percent >= limit_percent)
    return percent == 0 ? 0 : 100;
  return (percent * 100 + limit_percent / 2) / limit_percent;
}

/* The last second ends now: it is made of the one that runs, and of the end of the one before. */
unsigned utilization_measured(const struct vgpu_device_shared *device, int64_t now_ns, uint32_t limit_percent) {
  int64_t second = now_ns / S;
  if (second < 1)
    return 0;
  int64_t before_us = busy_us(device, second - 1) * (S - now_ns % S) / S;
  int64_t allowed_us = S_IN_US / 100 * max(limit_percent, 1);
  return (unsigned)min(((busy_us(device, second) + before_us) * 100 + allowed_us / 2) / allowed_us, 100);
}
