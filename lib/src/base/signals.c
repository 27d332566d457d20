#include "base/signals.h"

#include "base/clock.h"

#include <stddef.h>

__thread struct signals signals;

/* One that an instruction raises would be fatal while it is blocked. */
void signals_hold(void) {
  static const int raised[] = {SIGABRT, SIGBUS, SIGFPE, SIGILL, SIGSEGV, SIGSYS, SIGTRAP};
  sigset_t most;
  sigfillset(&most);
  for (size_t i = 0; i < sizeof raised / sizeof raised[0]; i++)
    sigdelset(&most, raised[i]);
  sigprocmask(SIG_BLOCK, &most, &signals.before); /* of the thread; pthread_sigmask is in no libc before 2.32 */
  signals.held = true;
}

/* A handler may jump out of the system call. */
void signals_release_held(void) {
  signals.held = false;
  sigprocmask(SIG_SETMASK, &signals.before, NULL);
}

void signals_sleep_ns(int64_t duration_ns) {
  signals_release();
  clock_sleep_ns(duration_ns);
  signals_hold();
}
