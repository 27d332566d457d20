#include "bucket.h"

#include "holes.h"
#include "seconds.h"

#include <stdbool.h>

/* The wall time in which gpu_ns accrue. */
static int64_t wall_time(int64_t gpu_ns, uint32_t sm_percent) {
  return gpu_ns * 100 / (sm_percent > 0 ? sm_percent : 1);
}

static int64_t max(int64_t a, int64_t b) {
  return a > b ? a : b;
}

/* Claims the part of the span that is later than all that has been charged; what is before it is left out for now. */
static struct span claim(struct vgpu_device_shared *device, struct span span, int64_t now_ns) {
  int64_t until = __atomic_load_n(&device->charged_until_ns, __ATOMIC_RELAXED);
  int64_t from;
  do {
    /* Nothing can have been charged in advance: a much later instant is damage. */
    from = until > now_ns + 1000000000LL ? span.start_ns : max(span.start_ns, until);
    if (from >= span.end_ns)
      return (struct span){span.end_ns, span.end_ns};
  } while (!__atomic_compare_exchange_n(&device->charged_until_ns, &until, span.end_ns, false, __ATOMIC_RELAXED,
                                        __ATOMIC_RELAXED));
  if (from > until)
    holes_add(device, (struct span){until, from}, now_ns);
  return (struct span){from, span.end_ns};
}

/* No debt is later than the latest: that is damage, and forgotten. */
static int64_t plausible(int64_t zero_at, int64_t now_ns, int64_t latest) {
  return zero_at <= latest ? zero_at : now_ns;
}

void bucket_pay(struct vgpu_device_shared *device, int64_t start_ns, int64_t end_ns, int64_t now_ns,
                uint32_t sm_percent) {
  int64_t latest = now_ns + wall_time(BUCKET_MAX_DEBT_NS, sm_percent);
  int64_t zero_at = __atomic_load_n(&device->tokens_zero_at_ns, __ATOMIC_RELAXED);
  int64_t paid;
  do {
    /* The burst is what had accrued when the time began; while it passed, tokens accrued without a bound. */
    int64_t burst_ns = wall_time(BUCKET_BURST_NS, sm_percent);
    paid = max(plausible(zero_at, now_ns, latest), start_ns - burst_ns) + wall_time(end_ns - start_ns, sm_percent);
    if (paid > latest)
      paid = latest;
  } while (!__atomic_compare_exchange_n(&device->tokens_zero_at_ns, &zero_at, paid, false, __ATOMIC_RELAXED,
                                        __ATOMIC_RELAXED));
}

static int64_t charge(struct vgpu_device_shared *device, struct span span, int64_t now_ns, uint32_t sm_percent) {
  int64_t charge_ns = span.end_ns - span.start_ns;
  if (charge_ns <= 0)
    return 0;
  bucket_pay(device, span.start_ns, span.end_ns, now_ns, sm_percent);
  __atomic_add_fetch(&device->busy_ns, (uint64_t)charge_ns, __ATOMIC_RELAXED);
  seconds_add(device, span.start_ns, span.end_ns);
  return charge_ns;
}

/* In the order in which it was used, since the burst is counted from there. Others may add holes for ever. */
int64_t bucket_charge(struct vgpu_device_shared *device, int64_t start_ns, int64_t end_ns, int64_t now_ns,
                      uint32_t sm_percent) {
  struct span whole = {start_ns, end_ns < now_ns ? end_ns : now_ns};
  struct span fresh = claim(device, whole, now_ns), late = {start_ns, fresh.start_ns}, taken;
  int64_t charged_ns = 0;
  for (int i = 0; i < VGPU_HOLES && holes_take(device, late, now_ns, &taken); i++) {
    charged_ns += charge(device, taken, now_ns, sm_percent);
    late.start_ns = taken.end_ns;
  }
  return charged_ns + charge(device, fresh, now_ns, sm_percent);
}

/* The limit in force stands in the file; one process sees it change, and only that one converts the debt. */
void bucket_follow_limit(struct vgpu_device_shared *device, int64_t now_ns, uint32_t sm_percent) {
  uint32_t before = __atomic_load_n(&device->sm_limit_percent, __ATOMIC_RELAXED);
  if (before == sm_percent || !__atomic_compare_exchange_n(&device->sm_limit_percent, &before, sm_percent, false,
                                                           __ATOMIC_RELAXED, __ATOMIC_RELAXED))
    return;
  int64_t zero_at = __atomic_load_n(&device->tokens_zero_at_ns, __ATOMIC_RELAXED);
  int64_t owed_ns = zero_at - now_ns; /* as wall time */
  if (before < 1 || before > 100 || zero_at <= now_ns || owed_ns > wall_time(BUCKET_MAX_DEBT_NS, before))
    return;
  int64_t converted = now_ns + owed_ns * before / (sm_percent > 0 ? sm_percent : 1);
  __atomic_compare_exchange_n(&device->tokens_zero_at_ns, &zero_at, converted, false, __ATOMIC_RELAXED,
                              __ATOMIC_RELAXED);
}

int64_t bucket_open_at(struct vgpu_device_shared *device, int64_t now_ns, uint32_t sm_percent) {
  int64_t latest = now_ns + wall_time(BUCKET_MAX_DEBT_NS, sm_percent);
  int64_t zero_at = __atomic_load_n(&device->tokens_zero_at_ns, __ATOMIC_RELAXED);
  int64_t open_at = plausible(zero_at, now_ns, latest);
  if (open_at != zero_at)
    __atomic_compare_exchange_n(&device->tokens_zero_at_ns, &zero_at, open_at, false, __ATOMIC_RELAXED,
                                __ATOMIC_RELAXED);
  return open_at;
}

void bucket_forgive(struct vgpu_device_shared *device, int64_t now_ns) {
  int64_t zero_at = __atomic_load_n(&device->tokens_zero_at_ns, __ATOMIC_RELAXED);
  if (zero_at > now_ns)
    __atomic_compare_exchange_n(&device->tokens_zero_at_ns, &zero_at, now_ns, false, __ATOMIC_RELAXED,
                                __ATOMIC_RELAXED);
}
