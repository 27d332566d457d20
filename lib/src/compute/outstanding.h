/*
 * Which work has been launched and is not known to be done, and for how long there was any: what a program whose limit
 * the GPU's own scheduler holds may have had of the GPU at most. Nothing is asked of the driver but what the thread
 * that launches, or waits, may ask of its own streams; and nothing is recorded on a stream.
 */
#pragma once

#include "compute/meter.h"

/* Before a launch, and after it: another thread may have waited for the stream in between. `kernel_ns` is when the
 * launch of a kernel began; 0: it was refused, or is a graph's, which may have copies alone. */
void outstanding_launch(struct meter_stream *stream, int64_t now_ns);
void outstanding_launched(struct meter_stream *stream, int64_t kernel_ns);

/* The stream was found idle by a wait or a question that began at that time; INT64_MAX: it is gone, its work with it,
 * or nobody asks any more. */
void outstanding_done(struct meter_stream *stream, int64_t began_ns);

/* Likewise, of all streams of a context; NULL: of all. */
void outstanding_all_done(struct meter *meter, const void *context, int64_t began_ns);

/* After a wait, or a question, that says nothing about single streams: those that the calling thread launched on are
 * asked. Returns since when any of them has had work; INT64_MAX: none has. */
int64_t outstanding_ask(struct meter *meter, int64_t began_ns);

/* From now on nothing can run, or it can again; and whether a kernel was launched and ended in between. */
void outstanding_note_off(struct meter *meter, int64_t now_ns);
bool outstanding_note_on(struct meter *meter);

/* For how long there was such work since the last call. */
int64_t outstanding_take_ns(struct meter *meter, int64_t now_ns);

static inline bool outstanding_any(struct meter *meter) {
  return atomic_load(&meter->outstanding.streams) > 0;
}
