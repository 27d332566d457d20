#include "claim.h"

#include "clock.h"

#include <errno.h>

#define TRIES 100
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
  for (int tries = 0; !claim_try(claim) && !claim_is_own(claim); tries++)
    if (tries < TRIES)
      claim_pause();
    else if (claim_recover(claim))
      return;
    else
      clock_sleep_ns(SLEEP_NS);
}
