/* The bucket on a clock of our own. */
#include "base/bucket.h"
#include "cases.h"
#include "check.h"

#define MS 1000000LL
#define S 1000000000LL

static int64_t zero_at_ns, now_ns;

static void start_over(void) {
  zero_at_ns = 0;
  now_ns = 1000 * S;
}

static void pay(int64_t gpu_ns, uint32_t percent) {
  zero_at_ns = bucket_pay(zero_at_ns, gpu_ns, now_ns, now_ns, percent);
}

/* Work of work_ns at a time, as fast as the tokens allow: its share over a long time, in percent. */
static double share(int64_t work_ns, uint32_t percent) {
  start_over();
  int64_t start_ns = now_ns, busy_ns = 0, end_ns = now_ns + (work_ns > MS ? 8000 * work_ns : 40 * S) * 100 / percent;
  while (now_ns < end_ns) {
    pay(work_ns, percent);
    now_ns += work_ns;
    now_ns = zero_at_ns > now_ns ? zero_at_ns : now_ns;
    busy_ns += work_ns;
  }
  return 100.0 * (double)busy_ns / (double)(now_ns - start_ns);
}

static void check_shares(void) {
  const int64_t works_ns[] = {4000, 50000, MS, 5 * MS, 200 * MS};
  const uint32_t percents[] = {1, 10, 20, 50, 80, 99};
  for (size_t w = 0; w < sizeof works_ns / sizeof *works_ns; w++)
    for (size_t p = 0; p < sizeof percents / sizeof *percents; p++) {
      double got = share(works_ns[w], percents[p]);
      CHECK(got > percents[p] - 0.1 && got < percents[p] + 0.1, "%lld ns at %u %%: %.3f %%", (long long)works_ns[w],
            percents[p], got);
    }
}

static void check_wait_is_exact(void) {
  start_over();
  pay(BUCKET_BURST_NS, 25); /* the accrued tokens */
  CHECK(zero_at_ns == now_ns, "the burst is free");
  pay(MS, 25);
  CHECK(zero_at_ns == now_ns + 4 * MS, "%lld", (long long)(zero_at_ns - now_ns));
  pay(-MS, 25);
  CHECK(zero_at_ns == now_ns, "given back");
}

/* More than can be owed is forgiven, whatever stands in the file. */
static void check_debt_is_bounded(void) {
  start_over();
  int64_t latest_ns = now_ns + bucket_wall_ns(BUCKET_MOST_DEBT_NS, 10);
  pay(100 * S, 10);
  CHECK(zero_at_ns == latest_ns, "%lld", (long long)(zero_at_ns - now_ns));
  CHECK(bucket_zero_at(INT64_MAX, now_ns, 10) == latest_ns && bucket_zero_at(INT64_MIN, now_ns, 10) == INT64_MIN,
        "any");
  zero_at_ns = INT64_MIN;
  pay(MS, 0);
  CHECK(zero_at_ns < now_ns, "a percentage of 0 is 1");
}

int main(int count, char **names) {
  cases_begin(count, names);
  CASE("shares") check_shares();
  CASE("wait is exact") check_wait_is_exact();
  CASE("debt is bounded") check_debt_is_bounded();
  return cases_end();
}
