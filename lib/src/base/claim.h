/*
 * A claim is a lock that knows its thread. A signal handler may leave a call of ours by siglongjmp, and the claim stays
 * behind: the thread's next call takes it, and anybody may once the thread has ended. So what a claim guards is to be
 * usable, not exact, wherever its thread may have been stopped.
 */
#pragma once

#include "base/compiler.h"
#include <signal.h>

#include <stdbool.h>
#include <stdint.h>

/* The kernel's number of the calling thread. */
extern __thread int32_t claim_thread;
COLD int32_t claim_ask_thread(void);
static inline int32_t claim_this_thread(void) {
  return __builtin_expect(claim_thread != 0, 1) ? claim_thread : claim_ask_thread();
}

static inline bool claim_try_from(int32_t *claim, int32_t from) {
  return __atomic_compare_exchange_n(claim, &from, claim_this_thread(), false, __ATOMIC_ACQUIRE, __ATOMIC_RELAXED);
}
static inline bool claim_try(int32_t *claim) {
  return claim_try_from(claim, 0);
}
static inline bool claim_is_own(const int32_t *claim) {
  return __atomic_load_n(claim, __ATOMIC_RELAXED) == claim_this_thread();
}
static inline void claim_release(int32_t *claim) {
  __atomic_store_n(claim, 0, __ATOMIC_RELEASE);
}

/* Takes a claim that was left behind. */
COLD bool claim_recover(int32_t *claim);

/* Waits for a claim that is held for some microseconds. Where its thread has left it by a jump and does not come back,
 * it is taken after a second or so. */
COLD void claim_wait(int32_t *claim);
static inline void claim_take(int32_t *claim) {
  if (__builtin_expect(!claim_try(claim), 0))
    claim_wait(claim);
}

/* Lets the processor rest for a moment. */
static inline void claim_pause(void) {
#ifdef __x86_64__
  __builtin_ia32_pause();
#elif defined __aarch64__
  __asm__ volatile("yield");
#endif
}

/* Call in a forked child: its thread has another number. */
void claim_forget_thread(void);

/*
 * A launch that waits sleeps, looks, and sleeps again. A signal handler may leave it by siglongjmp: out of a look it
 * would leave a lock behind, ours or the driver's. So once a thread has slept, signals reach it in its sleep alone,
 * until its wait is over. A launch that does not sleep makes no system call for that.
 */

extern __thread struct signals {
  bool held;
  sigset_t before; /* the thread's own mask */
} signals;

/* Keeps signals from the thread: call after a sleep. */
void signals_hold(void);

/* Lets them through again: call before the next sleep, or when the wait is over. */
COLD void signals_release_held(void);
static inline void signals_release(void) {
  if (__builtin_expect(signals.held, 0))
    signals_release_held();
}

/* Sleeps in such a wait. */
void signals_sleep_ns(int64_t duration_ns);
