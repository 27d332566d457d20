/* The clock of everything here: nanoseconds of CLOCK_MONOTONIC, the same in all processes of a host. */
#ifndef VGPU_CLOCK_H
#define VGPU_CLOCK_H

#include <stdint.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

static inline int64_t clock_now_ns(void) {
  struct timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return (int64_t)now.tv_sec * 1000000000 + now.tv_nsec;
}

/* The same clock a few milliseconds late, for a quarter of the cost. */
static inline int64_t clock_coarse_ns(void) {
  struct timespec now;
  clock_gettime(CLOCK_MONOTONIC_COARSE, &now);
  return (int64_t)now.tv_sec * 1000000000 + now.tv_nsec;
}

/* May return early when a signal arrives: callers look at the clock again. Not by a function of libc, where a thread
 * that is cancelled would end, and with it whoever waits for what it has claimed. */
static inline void clock_sleep_ns(int64_t duration_ns) {
  struct timespec duration = {.tv_sec = duration_ns / 1000000000, .tv_nsec = duration_ns % 1000000000};
  syscall(SYS_clock_nanosleep, CLOCK_MONOTONIC, 0, &duration, NULL);
}

#endif
