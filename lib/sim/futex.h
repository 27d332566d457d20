/* Waits for a word of the state file to change, and wakes those that wait: across processes. */
#pragma once

#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "common.h"

/* Returns early now and then; the caller looks again. A wait of 0 has no end. */
static inline void futex_wait(_Atomic uint32_t *word, uint32_t while_it_is, uint64_t at_most_ns) {
  struct timespec {
    long seconds, nanoseconds;
  } time = {(long)(at_most_ns / NS_PER_S), (long)(at_most_ns % NS_PER_S)};
  syscall(SYS_futex, word, FUTEX_WAIT, while_it_is, at_most_ns ? &time : NULL, NULL, 0);
}

static inline void futex_wake(_Atomic uint32_t *word) {
  syscall(SYS_futex, word, FUTEX_WAKE, INT32_MAX, NULL, NULL, 0);
}
