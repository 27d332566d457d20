#include "wait_times.h"

#include <stdbool.h>
#include <string.h>

#define MINUTE_NS 60000000000LL

static void begin_minute(struct vgpu_wait_times *times, uint32_t minute) {
  if (times->minute + 1 == minute)
    memcpy(times->counts_before, times->counts, sizeof times->counts);
  else
    memset(times->counts_before, 0, sizeof times->counts_before);
  memset(times->counts, 0, sizeof times->counts);
  times->minute = minute;
}

void wait_times_note(struct vgpu_wait_times *times, int64_t now_ns, int64_t waited_ns) {
  uint32_t minute = (uint32_t)(now_ns / MINUTE_NS);
  int bucket = 0;
  if (times->minute != minute)
    begin_minute(times, minute);
  while (bucket < VGPU_WAIT_BUCKETS - 1 && waited_ns >= WAIT_TIMES_FIRST_NS << bucket)
    bucket++;
  bool is_full = times->counts[bucket] == UINT16_MAX;
  for (int i = 0; is_full && i < VGPU_WAIT_BUCKETS; i++)
    times->counts[i] /= 2; /* their proportions stay */
  times->counts[bucket]++;
}
