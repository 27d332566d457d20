/*
 * Which schedule is true, for all processes. A process takes a copy of the true one, changes that, and makes it the
 * true one if no other process has done so meanwhile: with one store, so that one that is stopped or killed at any
 * moment holds nobody up, and has to begin anew when it goes on. Each process has two places for its copies, and never
 * writes the one that is true. For one thread at a time.
 */
#pragma once

#include "state.h"

/* A copy of the true schedule, in which nothing has ended since. */
struct schedule *shared_schedule_copy(void);

/* Makes the last copy the true one. False when another one has become that. A process without a slot only looks: nobody
 * else will see its copy. */
bool shared_schedule_publish(void);
