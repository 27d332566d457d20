/* The quick clock: on counters made up here, and on this machine's own against the clock that it stands for. */
#include "base/clock.h"
#include "check.h"

#include <pthread.h>
#include <stdlib.h>

#define MS 1000000LL
#define S 1000000000LL
#define RUN_NS (30 * MS)
#define READINGS 20000
#define THREADS 4

/* A counter of 2.6 GHz, at a time that may be any. */
static uint64_t ticks_at(int64_t now_ns) {
  return 123456789 + (uint64_t)now_ns * 26 / 10;
}

static struct quick_clock placed_twice(void) {
  struct quick_clock clock = {0};
  CHECK(quick_clock_place(&clock, ticks_at(5 * S), 5 * S) && clock.good_ticks == 0, "no rate is known yet");
  CHECK(quick_clock_place(&clock, ticks_at(5 * S + MS / 10), 5 * S + MS / 10) && clock.good_ticks == 0, "too soon");
  CHECK(quick_clock_place(&clock, ticks_at(5 * S + MS), 5 * S + MS), "even");
  CHECK(clock.good_ticks > 2500000 && clock.good_ticks < 2700000, "%llu", (unsigned long long)clock.good_ticks);
  return clock;
}

static void check_even(void) {
  struct quick_clock clock = placed_twice();
  int64_t now_ns = 5 * S + MS;
  for (int i = 0; i < 10000; i++) {
    int64_t error_ns = quick_clock_at_ns(&clock, ticks_at(now_ns + MS / 2)) - (now_ns + MS / 2);
    CHECK(error_ns >= -2 && error_ns <= 2, "%lld", (long long)error_ns);
    now_ns += MS + i * 100; /* the next call comes at some time */
    CHECK(quick_clock_place(&clock, ticks_at(now_ns), now_ns), "even");
  }
  now_ns += 1000 * S; /* nothing is learned from a long rest */
  uint64_t rate = clock.rate;
  CHECK(quick_clock_place(&clock, ticks_at(now_ns) + 999999999, now_ns) && clock.rate == rate, "even");
}

static void check_uneven(void) {
  struct quick_clock clock = placed_twice(), ahead = clock, behind = clock, stopped = clock, again = clock;
  int64_t now_ns = 5 * S + 3 * MS;
  CHECK(!quick_clock_place(&ahead, ticks_at(now_ns + MS), now_ns), "another processor's is ahead");
  CHECK(!quick_clock_place(&behind, ticks_at(now_ns - 4 * MS), now_ns), "another processor's is behind");
  CHECK(!quick_clock_place(&stopped, clock.base_ticks, now_ns), "it stands still");
  CHECK(!quick_clock_place(&again, ticks_at(now_ns), clock.base_ns + MS / 10), "too much in too little time");
  now_ns += 400 * MS;
  CHECK(quick_clock_place(&clock, ticks_at(now_ns + now_ns / 100000), now_ns), "a clock that is slewed is even");
}

/* Whoever is interrupted between two looks at the clock learns less of what is between them, and fails nothing. */
static void *check_this_machine(void *argument) {
  int far = 0, readings = 0;
  for (int64_t until_ns = clock_now_ns() + RUN_NS; readings < READINGS || clock_now_ns() < until_ns; readings++) {
    int64_t before_ns = clock_now_ns();
    int64_t now_ns = quick_clock_ns();
    int64_t after_ns = clock_now_ns();
    CHECK(now_ns > before_ns - MS && now_ns < after_ns + MS, "%lld in %lld to %lld", (long long)now_ns,
          (long long)before_ns, (long long)after_ns);
    far += now_ns < before_ns - 5000 || now_ns > after_ns + 5000;
  }
  CHECK(far < readings / 2, "%d of %d", far, readings);
  return argument;
}

int main(void) {
  check_even();
  check_uneven();
  pthread_t threads[THREADS];
  for (int i = 0; i < THREADS; i++)
    CHECK(pthread_create(&threads[i], NULL, check_this_machine, NULL) == 0, "no thread");
  for (int i = 0; i < THREADS; i++)
    pthread_join(threads[i], NULL);
  return 0;
}
