#include "holes.h"

#define US 1000LL
/* A word has the hole's length in its lower bits, and above them when it began, both in microseconds. What ended longer
 * ago than the longest hole, or is yet to come, is none: so it does not matter that the uppermost bits are missing. */
#define LENGTH_BITS 20
#define LONGEST_US ((1LL << LENGTH_BITS) - 1)
#define MOST_US ((int64_t)(UINT64_MAX >> LENGTH_BITS))

static int64_t min(int64_t a, int64_t b) {
  return a < b ? a : b;
}

static int64_t max(int64_t a, int64_t b) {
  return a > b ? a : b;
}

static uint64_t pack(struct span span) {
  int64_t end_us = span.end_ns / US, length_us = min(end_us - span.start_ns / US, LONGEST_US);
  return length_us > 0 ? (uint64_t)(end_us - length_us) << LENGTH_BITS | (uint64_t)length_us : 0;
}

static struct span unpack(uint64_t word, int64_t now_ns) {
  int64_t length_us = word & LONGEST_US;
  int64_t age_us = (now_ns / US - (int64_t)(word >> LENGTH_BITS)) & MOST_US;
  int64_t start_us = now_ns / US - age_us;
  return age_us - length_us > LONGEST_US ? (struct span){0} : (struct span){start_us * US, (start_us + length_us) * US};
}

static bool change(uint64_t *hole, uint64_t before, uint64_t after) {
  return __atomic_compare_exchange_n(hole, &before, after, false, __ATOMIC_RELAXED, __ATOMIC_RELAXED);
}

/* The longer ago it was, the longer it must be to be kept: a process that comes back late has done much. */
static int64_t worth(struct span span, int64_t now_ns) {
  return ((span.end_ns - span.start_ns) << LENGTH_BITS) / max(now_ns - span.start_ns, 1);
}

void holes_add(struct vgpu_device_shared *device, struct span span, int64_t now_ns) {
  uint64_t added = pack(span), replaced = 0;
  uint64_t *place = NULL;
  int64_t least = worth(unpack(added, now_ns), now_ns);
  for (uint64_t *hole = device->holes; hole < device->holes + VGPU_HOLES; hole++) {
    uint64_t word = __atomic_load_n(hole, __ATOMIC_RELAXED);
    int64_t its_worth = worth(unpack(word, now_ns), now_ns);
    if (its_worth >= least)
      continue;
    place = hole;
    replaced = word;
    least = its_worth;
  }
  if (place != NULL)
    change(place, replaced, added);
}

bool holes_take(struct vgpu_device_shared *device, struct span wanted, int64_t now_ns, struct span *taken) {
  int64_t from_ns = wanted.start_ns / US * US, to_ns = wanted.end_ns / US * US;
  uint64_t before = 0;
  uint64_t *place = NULL;
  struct span whole = {0};
  for (uint64_t *hole = device->holes; hole < device->holes + VGPU_HOLES; hole++) {
    uint64_t word = __atomic_load_n(hole, __ATOMIC_RELAXED);
    struct span span = unpack(word, now_ns);
    bool is_wanted = max(span.start_ns, from_ns) < min(span.end_ns, to_ns);
    if (!is_wanted || (place != NULL && span.start_ns >= whole.start_ns))
      continue;
    place = hole;
    before = word;
    whole = span;
  }
  if (place == NULL)
    return false;
  *taken = (struct span){max(whole.start_ns, from_ns), min(whole.end_ns, to_ns)};
  struct span left = {whole.start_ns, taken->start_ns}, right = {taken->end_ns, whole.end_ns};
  bool left_is_longer = left.end_ns - left.start_ns > right.end_ns - right.start_ns;
  if (!change(place, before, pack(left_is_longer ? left : right)))
    return false;
  holes_add(device, left_is_longer ? right : left, now_ns);
  return true;
}
