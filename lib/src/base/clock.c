
#include "base/clock.h"

#define GOOD_NS 1000000LL
#define SHORTEST_NS 500000LL /* a rate is taken from no less */
#define LONGEST_NS 1000000000LL
#define UNEVEN                                                                                                         \
  64 /* a rate that differs by more than this part. The clock itself is slewed by less than a thousandth               \
      */

__thread struct quick_clock quick_clock;

static bool is_even(uint64_t rate, uint64_t other) {
  uint64_t difference = rate > other ? rate - other : other - rate;
  return difference < other / UNEVEN;
}

/* A thread that comes seldom learns no rate, and asks the clock each time. */
bool quick_clock_place(struct quick_clock *clock, uint64_t ticks, int64_t now_ns) {
  int64_t passed_ns = now_ns - clock->base_ns;
  bool first = clock->base_ticks == 0;
  if (!first && passed_ns < SHORTEST_NS)
    return clock->rate == 0; /* else it has run through a millisecond, or back */
  if (!first && passed_ns <= LONGEST_NS) {
    uint64_t passed_ticks = ticks - clock->base_ticks;
    uint64_t rate = passed_ticks > 0 ? ((uint64_t)passed_ns << 32) / passed_ticks : 0;
    if (rate == 0 || (clock->rate > 0 && !is_even(rate, clock->rate)))
      return false;
    clock->rate = rate;
  }
  clock->base_ticks = ticks;
  clock->base_ns = now_ns;
  clock->good_ticks = clock->rate > 0 ? ((uint64_t)GOOD_NS << 32) / clock->rate : 0;
  return true;
}

#ifdef __x86_64__
#include <cpuid.h>

#define NARROW_TICKS 2000 /* between two readings of the counter; more, and the thread was interrupted between them */

enum counter { COUNTER_UNKNOWN, COUNTER_IS_EVEN, COUNTER_IS_NOT };
static enum counter counter;

/* Does the processor promise it? A program that forbids itself to read the counter could not ask the clock either. */
static enum counter ask(void) {
  unsigned a, b, c, d;
  bool invariant = __get_cpuid(0x80000007, &a, &b, &c, &d) && (d & 1U << 8) != 0;
  return invariant ? COUNTER_IS_EVEN : COUNTER_IS_NOT;
}

static bool counter_is_even(void) {
  enum counter known = __atomic_load_n(&counter, __ATOMIC_RELAXED);
  if (known == COUNTER_UNKNOWN)
    __atomic_store_n(&counter, known = ask(), __ATOMIC_RELAXED);
  return known == COUNTER_IS_EVEN;
}

/* Processors whose counters differ show when the thread has moved from one to the other. */
int64_t quick_clock_refresh_ns(void) {
  quick_clock.good_ticks = 0;
  if (!counter_is_even())
    return clock_now_ns();
  uint64_t before = __builtin_ia32_rdtsc();
  int64_t now_ns = clock_now_ns();
  uint64_t after = __builtin_ia32_rdtsc();
  if (after - before < NARROW_TICKS && !quick_clock_place(&quick_clock, before + (after - before) / 2, now_ns))
    __atomic_store_n(&counter, COUNTER_IS_NOT, __ATOMIC_RELAXED);
  return now_ns;
}
#else
int64_t quick_clock_refresh_ns(void) {
  return clock_now_ns();
}
#endif
