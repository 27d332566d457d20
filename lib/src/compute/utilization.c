#include "compute/utilization.h"

#define S_IN_NS 1000000000LL
#define S_IN_US 1000000ULL

/* An entry of another second is old, and says that nothing was charged in this one. */
static uint64_t busy_us(const struct vgpu_device_shared *device, int64_t second) {
  uint64_t entry = __atomic_load_n(&device->seconds[second % VGPU_SECONDS], __ATOMIC_RELAXED);
  uint32_t us = (uint32_t)entry;
  if (entry >> 32 != (uint32_t)second)
    return 0;
  return us < S_IN_US ? us : S_IN_US;
}

unsigned utilization_of_limit(unsigned percent, uint32_t limit_percent) {
  if (limit_percent == 0 || percent >= limit_percent)
    return percent == 0 ? 0 : 100;
  return (percent * 100 + limit_percent / 2) / limit_percent;
}

/* The last second ends now: it is made of the one that runs, and of the end of the one before. */
unsigned utilization_measured(const struct vgpu_device_shared *device, int64_t now_ns, uint32_t limit_percent) {
  int64_t second = now_ns / S_IN_NS;
  if (second < 1)
    return 0;
  uint64_t before = busy_us(device, second - 1) * (uint64_t)(S_IN_NS - now_ns % S_IN_NS) / (uint64_t)S_IN_NS;
  uint64_t allowed_us = S_IN_US / 100 * (limit_percent > 0 ? limit_percent : 1);
  uint64_t percent = ((busy_us(device, second) + before) * 100 + allowed_us / 2) / allowed_us;
  return percent < 100 ? (unsigned)percent : 100;
}
