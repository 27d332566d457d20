/* Small things that all parts of the simulated driver share. Times are nanoseconds of CLOCK_MONOTONIC. */
#pragma once

#include <pthread.h>
#include <signal.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define KIB (1ULL << 10)
#define MIB (1ULL << 20)
#define GIB (1ULL << 30)
#define NS_PER_US 1000ULL
#define NS_PER_MS 1000000ULL
#define NS_PER_S 1000000000ULL

/* Returns the answer of a call of CUDA or NVML from the function around it, unless the call went well. */
#define FORWARD_IF_ERROR(call)                                                                                         \
  do {                                                                                                                 \
    __typeof__(call) forwarded = (call);                                                                               \
    if (forwarded != 0)                                                                                                \
      return forwarded;                                                                                                \
  } while (0)

/* Writes a line to stderr, with the simulator's name before it. */
void complain(const char *format, ...) __attribute__((format(printf, 1, 2)));

uint64_t clock_ns(void);

/* Sleeps, and spins for the last stretch, because a sleep alone comes back tens of microseconds late. */
void clock_wait_until(uint64_t target_ns);

/* Keeps this process's threads apart, and signals out of the one that is in: a card and its kernel module hold no lock
 * of the process, so that a signal handler may call them within a launch. `before` is for the unlock. */
void kernel_lock(pthread_mutex_t *lock, sigset_t *before);
void kernel_unlock(pthread_mutex_t *lock, const sigset_t *before);

/* Sleeps alone: where it does not matter that it comes back late. */
void clock_sleep_until(uint64_t target_ns);

void clock_spin_until(uint64_t target_ns);

static inline uint64_t round_up(uint64_t value, uint64_t step) {
  return (value + step - 1) / step * step;
}
static inline uint64_t max_u64(uint64_t a, uint64_t b) {
  return a > b ? a : b;
}
static inline uint64_t min_u64(uint64_t a, uint64_t b) {
  return a < b ? a : b;
}

/* Whether this process may make files of that size: to try would raise SIGXFSZ. */
bool files_may_have(size_t bytes);
