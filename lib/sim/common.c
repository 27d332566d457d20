#include "common.h"

#include <errno.h>
#include <sched.h>
#include <stdarg.h>
#include <stdio.h>
#include <sys/resource.h>
#include <time.h>

#define SPIN_NS (80 * NS_PER_US)

void complain(const char *format, ...) {
  char line[1024];
  va_list arguments;
  va_start(arguments, format);
  vsnprintf(line, sizeof line, format, arguments);
  va_end(arguments);
  fprintf(stderr, "vgpusim: %s\n", line);
}

uint64_t clock_ns(void) {
  struct timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return (uint64_t)now.tv_sec * NS_PER_S + (uint64_t)now.tv_nsec;
}

void clock_spin_until(uint64_t target_ns) {
  while (clock_ns() < target_ns)
    sched_yield();
}

void clock_sleep_until(uint64_t target_ns) {
  struct timespec wake = {.tv_sec = (time_t)(target_ns / NS_PER_S), .tv_nsec = (long)(target_ns % NS_PER_S)};
  while (clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &wake, NULL) == EINTR)
    continue;
}

void clock_wait_until(uint64_t target_ns) {
  if (target_ns > clock_ns() + SPIN_NS)
    clock_sleep_until(target_ns - SPIN_NS);
  clock_spin_until(target_ns);
}

/* sigprocmask acts on this thread; pthread_sigmask is in no libc before 2.32. */
void kernel_lock(pthread_mutex_t *lock, sigset_t *before) {
  sigset_t all;
  sigfillset(&all);
  sigprocmask(SIG_SETMASK, &all, before);
  pthread_mutex_lock(lock);
}

void kernel_unlock(pthread_mutex_t *lock, const sigset_t *before) {
  pthread_mutex_unlock(lock);
  sigprocmask(SIG_SETMASK, before, NULL);
}

bool files_may_have(size_t bytes) {
  struct rlimit most;
  return getrlimit(RLIMIT_FSIZE, &most) != 0 || most.rlim_cur >= bytes;
}
