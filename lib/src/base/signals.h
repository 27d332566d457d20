/*
 * A launch that waits sleeps, looks, and sleeps again. A signal handler may leave it by siglongjmp: out of a look it
 * would leave a lock behind, ours or the driver's. So once a thread has slept, signals reach it in its sleep alone,
 * until its wait is over. A launch that does not sleep makes no system call for that.
 */
#ifndef VGPU_SIGNALS_H
#define VGPU_SIGNALS_H

#include "base/compiler.h"

#include <signal.h>
#include <stdbool.h>
#include <stdint.h>

extern __thread struct signals {
  bool held;
  sigset_t before; /* the thread's own mask */
} signals;

/* After a sleep, and before the next one or when the wait is over. */
void signals_hold(void);
SELDOM void signals_release_held(void);
static inline void signals_release(void) {
  if (__builtin_expect(signals.held, 0))
    signals_release_held();
}

/* clock_sleep_ns for such a wait. */
void signals_sleep_ns(int64_t duration_ns);

#endif
