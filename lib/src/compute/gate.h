/*
 * The limiter where the driver does not let its scheduler hold the limit: launches are held until there are tokens. The
 * process pays for the time in which it had work outstanding, whoever else had the GPU meanwhile. What is launched
 * ahead is bounded for each thread, so that it does not run on for long after the tokens are used up.
 */
#pragma once

#include "compute/meter.h"

/* Before a launch: waits until it may begin. All waits are bounded but a pause, which lasts as long as the host wants
 * it. */
void gate_pass(struct meter_stream *stream, int64_t now_ns);

/* Before a stream is destroyed: waits until its work is done, since nobody can ask for that later. That is bounded. */
void gate_finish(struct meter_stream *stream);

/* After a wait of the program: charges what was had until then, if that was not done lately. */
void gate_settle_now_and_then(struct meter *meter, int64_t now_ns);

/* Charges what has not been charged yet: the process ends. */
void gate_settle(struct meter *meter);
