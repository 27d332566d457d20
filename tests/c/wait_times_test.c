/* The histogram of waits: which bucket counts which, what a new minute keeps, and what happens when one is full. */
#include "cases.h"
#include "check.h"
#include "shared/history.h"

#include <string.h>

#define US 1000LL
#define MS 1000000LL
#define MINUTE (60000 * MS)

static int bucket_of(int64_t waited_ns) {
  struct vgpu_wait_times times = {0};
  wait_times_note(&times, MINUTE, waited_ns);
  int found = -1;
  for (int i = 0; i < VGPU_WAIT_BUCKETS; i++)
    if (times.counts[i] == 1)
      found = i;
  return found;
}

static void check_buckets(void) {
  static const struct {
    int64_t waited_ns;
    int bucket;
  } cases[] = {{-1, 0},       {0, 0},       {64 * US - 1, 0}, {64 * US, 1},   {128 * US - 1, 1},
               {128 * US, 2}, {20 * MS, 9}, {500 * MS, 13},   {525 * MS, 14}, {INT64_MAX, 14}};
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
    CHECK(bucket_of(cases[i].waited_ns) == cases[i].bucket, "%lld ns: %d", (long long)cases[i].waited_ns,
          bucket_of(cases[i].waited_ns));
}

static void check_minutes(void) {
  struct vgpu_wait_times times = {0};
  wait_times_note(&times, 5 * MINUTE, 0);
  wait_times_note(&times, 6 * MINUTE - 1, 0);
  wait_times_note(&times, 6 * MINUTE, MS);
  CHECK(times.minute == 6 && times.counts_before[0] == 2 && times.counts[0] == 0 && times.counts[4] == 1, "%u",
        times.minute);
  wait_times_note(&times, 8 * MINUTE, MS); /* of the minute before there were none */
  CHECK(times.minute == 8 && times.counts_before[0] == 0 && times.counts_before[4] == 0 && times.counts[4] == 1, "%u",
        times.minute);
}

static void check_a_full_bucket(void) {
  struct vgpu_wait_times times = {0};
  for (int i = 0; i < 300000; i++)
    wait_times_note(&times, MINUTE, i % 4 == 0 ? MS : 0);
  double part = (double)times.counts[4] / (times.counts[0] + times.counts[4]);
  CHECK(part > 0.24 && part < 0.26, "%.3f", part);
}

/* The file is the container's to write. */
static void check_anything(void) {
  struct vgpu_wait_times times;
  memset(&times, 0xff, sizeof times);
  wait_times_note(&times, 7 * MINUTE, MS);
  CHECK(times.minute == 7 && times.counts[4] == 1, "%u", times.minute);
}

int main(int count, char **names) {
  cases_begin(count, names);
  CASE("buckets") check_buckets();
  CASE("minutes") check_minutes();
  CASE("a full bucket") check_a_full_bucket();
  CASE("anything") check_anything();
  return cases_end();
}
