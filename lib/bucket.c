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

/* ---- the word: an instant, and the limit at which it is one --------------------------------------------------------
 */

/* The uppermost bits of the instant are missing: it is the one that is nearest to now, two years before or after. */
#define INSTANT_BITS 57

static int64_t zero_at_of(uint64_t word, int64_t now_ns) {
  return now_ns + ((int64_t)((word - (uint64_t)now_ns) << (64 - INSTANT_BITS)) >> (64 - INSTANT_BITS));
}

/* 0: not known. */
static uint32_t percent_of(uint64_t word) {
  return (uint32_t)(word >> INSTANT_BITS);
}

static uint64_t pack(int64_t zero_at, uint32_t sm_percent) {
  return (uint64_t)sm_percent << INSTANT_BITS | ((uint64_t)zero_at & ((1ULL << INSTANT_BITS) - 1));
}

static bool change(struct vgpu_device_shared *device, uint64_t *word, int64_t zero_at, uint32_t sm_percent) {
  return __atomic_compare_exchange_n(&device->tokens_zero_at, word, pack(zero_at, sm_percent), false, __ATOMIC_RELAXED,
                                     __ATOMIC_RELAXED);
}

/* ---- charging ------------------------------------------------------------------------------------------------------
 */

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
  uint64_t word = __atomic_load_n(&device->tokens_zero_at, __ATOMIC_RELAXED);
  int64_t paid;
  do {
    /* The burst is what had accrued when the time began; while it passed, tokens accrued without a bound. */
    int64_t burst_ns = wall_time(BUCKET_BURST_NS, sm_percent);
    paid = max(plausible(zero_at_of(word, now_ns), now_ns, latest), start_ns - burst_ns) +
           wall_time(end_ns - start_ns, sm_percent);
    if (paid > latest)
      paid = latest;
  } while (!change(device, &word, paid, percent_of(word)));
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

/* ---- the gate ------------------------------------------------------------------------------------------------------
 */

/* A debt is wall time, so that it changes together with the limit. */
static int64_t converted(int64_t zero_at, int64_t now_ns, uint32_t before, uint32_t sm_percent) {
  bool owes =
      before >= 1 && before <= 100 && zero_at > now_ns && zero_at - now_ns <= wall_time(BUCKET_MAX_DEBT_NS, before);
  return owes ? now_ns + (zero_at - now_ns) * before / (sm_percent > 0 ? sm_percent : 1) : zero_at;
}

void bucket_follow_limit(struct vgpu_device_shared *device, int64_t now_ns, uint32_t sm_percent) {
  uint64_t word = __atomic_load_n(&device->tokens_zero_at, __ATOMIC_RELAXED);
  uint32_t before;
  do {
    if ((before = percent_of(word)) == sm_percent)
      return;
  } while (!change(device, &word, converted(zero_at_of(word, now_ns), now_ns, before, sm_percent), sm_percent));
  __atomic_store_n(&device->sm_limit_percent, sm_percent, __ATOMIC_RELAXED);
}

int64_t bucket_open_at(struct vgpu_device_shared *device, int64_t now_ns, uint32_t sm_percent) {
  int64_t latest = now_ns + wall_time(BUCKET_MAX_DEBT_NS, sm_percent);
  uint64_t word = __atomic_load_n(&device->tokens_zero_at, __ATOMIC_RELAXED);
  int64_t zero_at = zero_at_of(word, now_ns), open_at = plausible(zero_at, now_ns, latest);
  if (open_at != zero_at)
    change(device, &word, open_at, percent_of(word));
  return open_at;
}

void bucket_forgive(struct vgpu_device_shared *device, int64_t now_ns) {
  uint64_t word = __atomic_load_n(&device->tokens_zero_at, __ATOMIC_RELAXED);
  if (zero_at_of(word, now_ns) > now_ns)
    change(device, &word, now_ns, percent_of(word));
}
