/*
 * The thread in every process that uses CUDA which takes the process off its GPUs and brings it back, as another
 * process asks: the driver on a card has one too. It ends what it has begun, even when the asking process has died.
 * The thread works under the driver's lock, which lets no call in while the process is locked.
 */
#pragma once

#include "common.h"

/* False when there is no memory for it. */
bool restore_thread_start(void);
