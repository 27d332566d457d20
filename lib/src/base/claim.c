#include "base/claim.h"
#include <stddef.h>

#include "base/clock.h"

#include <errno.h>

#define TRIES 100
#define SLEEPS 10000 /* each takes some 70 us; counted, since all threads may be stopped together */
#define SLEEP_NS 20000

__thread int32_t claim_thread;

int32_t claim_ask_thread(void) {
  return claim_thread = (int32_t)syscall(SYS_gettid);
}

void claim_forget_thread(void) {
  claim_thread = 0;
}

/* Any other error than "no such thread" would mean that it lives. */
static bool is_dead(int32_t thread) {
  return syscall(SYS_tgkill, getpid(), thread, 0) != 0 && errno == ESRCH;
}

bool claim_recover(int32_t *claim) {
  int32_t thread = __atomic_load_n(claim, __ATOMIC_RELAXED);
  return thread == claim_this_thread() || (thread != 0 && is_dead(thread) && claim_try_from(claim, thread));
}

void claim_wait(int32_t *claim) {
  for (int tries = 0; !claim_try(claim) && !claim_is_own(claim); tries++) {
    int32_t thread = __atomic_load_n(claim, __ATOMIC_RELAXED);
    if (tries < TRIES)
      claim_pause();
    else if (claim_recover(claim) || (tries >= TRIES + SLEEPS && claim_try_from(claim, thread)))
      return;
    else
      clock_sleep_ns(SLEEP_NS);
  }
}

/* ---- signals ----------------------------------------------------------------------------------------------------- */

__thread struct signals signals;

/* Blocks all signals but those that an instruction raises: blocked, these would be fatal. */
void signals_hold(void) {
  static const int raised[] = {SIGABRT, SIGBUS, SIGFPE, SIGILL, SIGSEGV, SIGSYS, SIGTRAP};
  sigset_t most;
  sigfillset(&most);
  for (size_t i = 0; i < sizeof raised / sizeof raised[0]; i++)
    sigdelset(&most, raised[i]);
  sigprocmask(SIG_BLOCK, &most, &signals.before); /* this thread's; pthread_sigmask is in no libc before 2.32 */
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
