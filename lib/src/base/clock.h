/* The clock of everything here: nanoseconds of CLOCK_MONOTONIC, the same in all processes of a host. */
#pragma once

#include <stdbool.h>
#include <stdint.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

static inline int64_t clock_now_ns(void) {
  struct timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return (int64_t)now.tv_sec * 1000000000 + now.tv_nsec;
}

/* Reads the clock a few milliseconds late, for a quarter of the cost. */
static inline int64_t clock_coarse_ns(void) {
  struct timespec now;
  clock_gettime(CLOCK_MONOTONIC_COARSE, &now);
  return (int64_t)now.tv_sec * 1000000000 + now.tv_nsec;
}

/* May return early when a signal arrives: callers look at the clock again. A system call, since in a function of libc a
 * cancelled thread would end, and leave others waiting for what it has claimed. */
static inline void clock_sleep_ns(int64_t duration_ns) {
  struct timespec duration = {.tv_sec = duration_ns / 1000000000, .tv_nsec = duration_ns % 1000000000};
  syscall(SYS_clock_nanosleep, CLOCK_MONOTONIC, 0, &duration, NULL);
}

/*
 * CLOCK_MONOTONIC for what happens at every call, at half the price: the processor's own counter, which each thread
 * places on that clock anew every millisecond. Where the counter cannot be had or does not run evenly, it is that clock
 * itself. It is right to some tens of nanoseconds (a microsecond at the worst), and may go back by as much.
 */

struct quick_clock {
  uint64_t base_ticks; /* 0: not placed yet */
  int64_t base_ns;
  uint64_t rate;       /* nanoseconds of a tick, times 2^32; 0: not known yet */
  uint64_t good_ticks; /* after base_ticks; then it is to be placed anew. 0: now */
};
extern __thread struct quick_clock quick_clock;

/* Places it: the counter stood at `ticks` at that time. False when it has not run evenly since the last time. */
bool quick_clock_place(struct quick_clock *clock, uint64_t ticks, int64_t now_ns);

/* Asks the clock itself, returns its answer, and places the counter by it. */
int64_t quick_clock_refresh_ns(void);

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
  return __builtin_expect(quick_clock.good_ticks > 0 && quick_clock_read(&now_ns), 1) ? now_ns
                                                                                      : quick_clock_refresh_ns();
}
