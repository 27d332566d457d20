/*
 * The thread in every process that uses CUDA which takes the process off its GPUs and brings it back, as another
 * process asks: the driver on a card has one too. It ends what it has begun, even when the asking process has died.
 */
#ifndef SIM_RESTORE_THREAD_H
#define SIM_RESTORE_THREAD_H

#include <pthread.h>

#include "common.h"

/* The thread works under the driver's lock. False when there is no memory for it. */
bool restore_thread_start(pthread_mutex_t *driver_lock);

/* Called with the lock held: waits, without it, while this process is locked. */
void restore_thread_wait_until_unlocked(pthread_mutex_t *driver_lock);

#endif
