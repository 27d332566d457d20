/* The bucket on a clock of our own. */
#include "bucket.h"
#include "check.h"

#include <stdlib.h>

#define MS 1000000LL

static struct vgpu_device_shared device;

static int64_t open_at(int64_t now_ns, uint32_t percent) {
  int64_t at = bucket_open_at(&device, now_ns, percent);
  return at > now_ns ? at : now_ns;
}

/* Work of work_ns at a time, as fast as the gate allows: its share over a long time, in percent. */
static double share(int64_t work_ns, uint32_t percent) {
  int64_t duration_ns = work_ns > MS ? 8000 * work_ns : 40000 * MS; /* the first burst does not show */
  device = (struct vgpu_device_shared){0};
  int64_t now_ns = 1000000 * MS, end_ns = now_ns + duration_ns * 100 / percent, start_ns = now_ns, busy_ns = 0;
  while (now_ns < end_ns) {
    now_ns = open_at(now_ns, percent) + work_ns;
    busy_ns += bucket_charge(&device, now_ns - work_ns, now_ns, now_ns, percent);
  }
  return 100.0 * (double)busy_ns / (double)(now_ns - start_ns);
}

static void check_shares(void) {
  const int64_t works_ns[] = {4000, 50000, MS, 5 * MS, 300 * MS};
  const uint32_t percents[] = {1, 10, 20, 50, 80, 99};
  for (size_t w = 0; w < sizeof works_ns / sizeof *works_ns; w++)
    for (size_t p = 0; p < sizeof percents / sizeof *percents; p++) {
      double got = share(works_ns[w], percents[p]);
      CHECK(got > percents[p] - 0.1 && got < percents[p] + 0.1, "%lld ns at %u %%: %.3f %%", (long long)works_ns[w],
            percents[p], got);
    }
}

static void check_wait_is_exact(void) {
  device = (struct vgpu_device_shared){0};
  int64_t now_ns = 1000 * MS;
  bucket_charge(&device, now_ns, now_ns + 60 * MS, now_ns + 60 * MS, 50);
  /* 20 ms burst, 30 ms accrued while it ran, 60 ms charged: 10 ms below zero, 20 ms at 50 %. */
  CHECK(open_at(now_ns + 60 * MS, 50) == now_ns + 80 * MS, "waits %lld", (long long)(open_at(0, 50) - now_ns));
}

static void check_burst_is_bounded(void) {
  device = (struct vgpu_device_shared){0};
  int64_t now_ns = 1000000 * MS; /* idle for a long time */
  bucket_charge(&device, now_ns, now_ns + 100 * MS, now_ns + 100 * MS, 10);
  CHECK(open_at(now_ns + 100 * MS, 10) == now_ns + 800 * MS, "20 ms saved up, no more");
}

static void check_union(void) {
  device = (struct vgpu_device_shared){0};
  int64_t t = 1000 * MS;
  CHECK(bucket_charge(&device, t, t + 10 * MS, t + 20 * MS, 50) == 10 * MS, "all of it");
  CHECK(bucket_charge(&device, t + 5 * MS, t + 12 * MS, t + 20 * MS, 50) == 2 * MS, "what is new of it");
  CHECK(bucket_charge(&device, t, t + 11 * MS, t + 20 * MS, 50) == 0, "nothing twice");
  CHECK(bucket_charge(&device, t + 15 * MS, t + 90 * MS, t + 20 * MS, 50) == 5 * MS, "nothing in advance");
  CHECK(device.busy_ns == 17 * MS, "busy %lld", (long long)device.busy_ns);
}

static void check_idle_time_is_paid(void) {
  device = (struct vgpu_device_shared){0};
  int64_t now_ns = 1000000 * MS;
  bucket_pay(&device, now_ns, now_ns + 60 * MS, now_ns + 60 * MS, 50);
  CHECK(open_at(now_ns + 60 * MS, 50) == now_ns + 80 * MS, "as if it were work");
  CHECK(device.busy_ns == 0, "but nothing ran");
  bucket_charge(&device, now_ns + 60 * MS, now_ns + 60060 * MS, now_ns + 60060 * MS, 10);
  int64_t later_ns = now_ns + 60061 * MS, owed_ns = open_at(later_ns, 10) - later_ns;
  CHECK(owed_ns > 99000 * MS, "owes %lld", (long long)owed_ns);
  bucket_pay(&device, later_ns - MS, later_ns, later_ns, 10);
  CHECK(open_at(later_ns, 10) - later_ns > owed_ns, "the largest debt there is does not become damage");
}

/* A debt made at one limit is paid off at another. */
static void check_changed_limit(void) {
  device = (struct vgpu_device_shared){0};
  int64_t now_ns = 1000000 * MS;
  bucket_follow_limit(&device, now_ns, 1);
  bucket_charge(&device, now_ns - 100 * MS, now_ns, now_ns, 1);
  int64_t owed_ns = (open_at(now_ns, 1) - now_ns) / 100; /* of GPU time */
  CHECK(owed_ns > 70 * MS, "owes %lld", (long long)owed_ns);
  bucket_follow_limit(&device, now_ns, 50);
  CHECK(open_at(now_ns, 50) == now_ns + owed_ns * 2, "waits %lld", (long long)(open_at(now_ns, 50) - now_ns));
  bucket_follow_limit(&device, now_ns, 50);
  CHECK(open_at(now_ns, 50) == now_ns + owed_ns * 2, "once");
}

static void check_damage(void) {
  device = (struct vgpu_device_shared){.tokens_zero_at = INT64_MAX, .charged_until_ns = INT64_MAX};
  int64_t now_ns = 1000 * MS;
  CHECK(open_at(now_ns, 50) == now_ns, "no wait without an end");
  CHECK(bucket_charge(&device, now_ns - MS, now_ns, now_ns, 50) == MS, "charges again");
  device.tokens_zero_at = INT64_MAX;
  CHECK(bucket_charge(&device, now_ns, now_ns + MS, now_ns + MS, 50) == MS, "charges");
  CHECK(open_at(now_ns + MS, 50) <= now_ns + 3 * MS, "and makes no debt of it");
  device = (struct vgpu_device_shared){.tokens_zero_at = (uint64_t)(INT64_MIN / 2), .charged_until_ns = INT64_MIN};
  CHECK(bucket_charge(&device, now_ns - MS, now_ns, now_ns, 50) == MS, "charges");
  CHECK(bucket_charge(&device, now_ns, now_ns + 360000 * MS, now_ns + 3600000 * MS, 1) > 0, "an hour's kernel");
  int64_t later_ns = now_ns + 360000 * MS;
  CHECK(open_at(later_ns, 1) - later_ns <= BUCKET_MAX_DEBT_NS * 100, "debt is bounded");
}

int main(void) {
  check_shares();
  check_wait_is_exact();
  check_burst_is_bounded();
  check_union();
  check_idle_time_is_paid();
  check_changed_limit();
  check_damage();
  return 0;
}
