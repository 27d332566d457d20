#include "seconds.h"

#define US 1000LL
#define S 1000000000LL
#define LONGEST_NS ((VGPU_SECONDS - 1) * S) /* older seconds have lost their entries to younger ones */

/* Differences of whole microseconds of the clock: no part of one is lost between intervals that follow one another. */
static uint32_t microseconds(int64_t start_ns, int64_t end_ns) {
  return (uint32_t)(end_ns / US - start_ns / US);
}

/* An entry of another second is an old one, or damage: either way it ends here. */
static void add_to_second(uint64_t *entry, uint32_t second, uint32_t busy_us) {
  uint64_t sum_us = busy_us + (*entry >> 32 == second ? (uint32_t)*entry : 0ULL);
  __atomic_store_n(entry, (uint64_t)second << 32 | (sum_us < S / US ? sum_us : S / US), __ATOMIC_RELAXED);
}

void seconds_add(struct vgpu_device_shared *device, int64_t start_ns, int64_t end_ns) {
  if (start_ns < end_ns - LONGEST_NS)
    start_ns = end_ns - LONGEST_NS;
  if (start_ns < 0)
    return;
  while (start_ns < end_ns) {
    int64_t second = start_ns / S;
    int64_t until_ns = end_ns < (second + 1) * S ? end_ns : (second + 1) * S;
    add_to_second(&device->seconds[second % VGPU_SECONDS], (uint32_t)second, microseconds(start_ns, until_ns));
    start_ns = until_ns;
  }
}
