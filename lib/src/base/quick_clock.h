/*
 * CLOCK_MONOTONIC for what happens at every call, at half the price: the processor's own counter, which each thread
 * places on that clock anew every millisecond. Where the counter cannot be had or does not run evenly, it is that clock
 * itself. It is right to some tens of nanoseconds (a microsecond at the worst), and may go back by as much.
 */
#ifndef VGPU_QUICK_CLOCK_H
#define VGPU_QUICK_CLOCK_H

#include <stdbool.h>
#include <stdint.h>

struct quick_clock {
  uint64_t base_ticks; /* 0: not placed yet */
  int64_t base_ns;
  uint64_t rate;       /* nanoseconds of a tick, times 2^32; 0: not known yet */
  uint64_t good_ticks; /* after base_ticks; then it is to be placed anew. 0: now */
};
extern __thread struct quick_clock quick_clock;

/* Places it: the counter stood at `ticks` at that time. False when it has not run evenly since the last time. */
bool quick_clock_place(struct quick_clock *clock, uint64_t ticks, int64_t now_ns);

/* The same by the clock itself, which is the answer. */
int64_t quick_clock_look_ns(void);

static inline int64_t quick_clock_at_ns(const struct quick_clock *clock, uint64_t ticks) {
  return clock->base_ns + (int64_t)((ticks - clock->base_ticks) * clock->rate >> 32);
}

/* False when the clock itself would have to be asked. */
static inline bool quick_clock_read(int64_t *now_ns) {
#ifdef __x86_64__
  uint64_t ticks = __builtin_ia32_rdtsc();
  *now_ns = quick_clock_at_ns(&quick_clock, ticks);
  return ticks - quick_clock.base_ticks < quick_clock.good_ticks;
#else
  (void)now_ns;
  return false;
#endif
}

static inline int64_t quick_clock_ns(void) {
  int64_t now_ns;
  return __builtin_expect(quick_clock.good_ticks > 0 && quick_clock_read(&now_ns), 1) ? now_ns : quick_clock_look_ns();
}

#endif
