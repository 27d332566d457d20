/* What the files of the meter share: meter.c (batches), meter_costs.c, meter_harvest.c, meter_pace.c, meter_waits.c. */
#ifndef VGPU_METER_PARTS_H
#define VGPU_METER_PARTS_H

#include "claim.h"
#include "hot.h"
#include "meter.h"

#define METER_UNKNOWN_COST_NS METER_RUN_AHEAD_NS /* at most two launches of unknown cost are in flight */

/* The first of METER_COST_WAYS places of which the work may have one. With one alone a program of 200 kernels would
 * have some that drive each other out for ever, and never be known. */
static inline struct meter_cost *meter_costs_of(struct meter *meter, uint64_t work) {
  return meter->costs[(work * 0x9e3779b97f4a7c15ULL) >> (64 - METER_COST_SET_BITS)];
}

/* Of several threads that raise it at once, any one's value may stay. */
static inline void meter_raise(int64_t *value, int64_t to) {
  if (to > __atomic_load_n(value, __ATOMIC_RELAXED))
    __atomic_store_n(value, to, __ATOMIC_RELAXED);
}

/* What a launch of this work usually takes; false when it has not been seen. Threads may race here: a
 * wrong one shifts a marker, and what a gap is charged, until it is learned anew. */
static inline bool meter_known_cost(struct meter *meter, uint64_t work, int64_t *cost_ns) {
  const struct meter_cost *costs = meter_costs_of(meter, work);
  for (int i = 0; i < METER_COST_WAYS; i++)
    if (__atomic_load_n(&costs[i].work, __ATOMIC_RELAXED) == work) {
      *cost_ns = __atomic_load_n(&costs[i].cost_ns, __ATOMIC_RELAXED);
      return true;
    }
  return false;
}

/* meter_unseen.c, with the claim held. Another batch is about to begin, and a row of launches with it, or it is of the
 * same row, in which there is no wait of the program and no silence; how many launches the batch may have, so that the
 * one that is to be measured by itself is. */
void meter_note_row(struct meter_stream *stream, bool begins);
uint32_t meter_most_launches(const struct meter_stream *stream);
static inline bool meter_is_checked(const struct meter_stream *stream, uint64_t work) {
  return stream->checks_next && work == stream->checked_work;
}

/* When the thread last came out of a wait, its own or the gate's. */
extern __thread int64_t meter_awake_since_ns;

/* Who learns it has no claim on the stream. */
static inline double meter_scale(const struct meter_stream *stream) {
  double scale;
  __atomic_load(&stream->scale, &scale, __ATOMIC_RELAXED);
  return scale;
}
static inline void meter_set_scale(struct meter_stream *stream, double scale) {
  __atomic_store(&stream->scale, &scale, __ATOMIC_RELAXED);
}

/* A batch has been measured. */
void meter_learn(struct meter_stream *stream, const struct batch *batch, int64_t measured_ns);

/* meter_pace.c, with the claim held: a batch is about to begin, perhaps after a wait of the program; the GPU has
 * nothing to do before that time; the batch gets a launch of that cost, which took the host so long; it ends with a
 * wait of the program, which has begun at its end_recorded_ns; it takes no more launches.
 */
uint8_t meter_host_age(int64_t awake_ns);
void meter_note_wait(struct meter_stream *stream);
void meter_begin_pace(struct meter_stream *stream, int64_t start_ns);
void meter_join_pace(struct meter_stream *stream, int64_t now_ns, int64_t host_ns, int64_t cost_ns);
void meter_wait_pace(struct meter_stream *stream);
void meter_note_pace(struct meter_stream *stream);

/* What of the time from start_ns to end_ns was the batch's work; how much of that is learned from; what it is charged.
 * The GPU may have waited within a batch, for how long is not known but from the costs. So where it may have, costs
 * that fit are not changed: else they would grow to whatever the host takes.
 */
int64_t meter_work_ns(const struct batch *batch, int64_t start_ns, int64_t end_ns);
int64_t meter_certain_work_ns(const struct batch *batch, int64_t start_ns, int64_t end_ns);
int64_t meter_due_ns(const struct batch *batch, int64_t start_ns, int64_t end_ns);

/* Is the host to go on for a while after the present wait, to see its pace? */
bool meter_looks_at_pace(const struct meter_stream *stream, int64_t now_ns);

/* The oldest batch of the stream is in flight no more. */
void meter_leave_flight(struct meter_stream *stream);

/* The context is destroyed, and its markers with it: they must not be touched any more. */
static inline bool meter_is_destroyed(const struct meter_stream *stream) {
  return __atomic_load_n(&stream->context, __ATOMIC_RELAXED) == NULL;
}
static inline void meter_recycle(const struct meter_stream *stream, void *marker) {
  if (marker != NULL && !meter_is_destroyed(stream))
    stream->meter->driver->recycle(marker);
}

/* By a thread that harvests: of what is in flight on a stream whose context is destroyed, nothing is measured. */
void meter_forget_in_flight(struct meter_stream *stream);

/* With the claim held: ends the batch, which is no longer open, with a marker; the second one ends the claim, too. */
void meter_mark_end(struct meter_stream *stream);
void meter_close_claimed(struct meter_stream *stream);

/* False when a thread has it for long: it is at the gate, or calls the driver. */
SELDOM bool meter_claim_again(struct meter_stream *stream);
static inline bool meter_claim(struct meter_stream *stream) {
  return claim_try(&stream->claim) || meter_claim_again(stream);
}
static inline void meter_unclaim(struct meter_stream *stream) {
  claim_release(&stream->claim);
}

/* Takes the open batch out of the stream to end it. False when there is none, or the calling thread may not call the
 * driver with the stream's handle: a stream that another thread launches on may be captured by it at any moment. */
bool meter_claim_open(struct meter_stream *stream);

/* Asked without the claim. */
static inline bool meter_is_open(const struct meter_stream *stream) {
  return __atomic_load_n(&stream->open, __ATOMIC_RELAXED);
}
static inline void meter_set_open(struct meter_stream *stream, bool open) {
  __atomic_store_n(&stream->open, open, __ATOMIC_RELAXED);
}

/* Charges an interval at once. */
void meter_charge(struct meter *meter, int64_t start_ns, int64_t end_ns, int64_t now_ns);

/* The work of a turn has begun at that time. */
void meter_pay_hand_over(struct meter *meter, int64_t start_ns);

/* With the claim held: the stream was idle from end_ns on, or usually would be; its open batch ends without a marker.
 */
void meter_finish_at(struct meter_stream *stream, int64_t end_ns, int64_t now_ns);
void meter_finish_by_estimate(struct meter_stream *stream);

/* The batch has come to its end. One that was never measured has no time. */
static inline void meter_show(const struct meter_stream *stream, const struct batch *batch, int64_t start_ns,
                              int64_t end_ns) {
  if (stream->observer != NULL)
    stream->observer->measured(stream, batch, start_ns, end_ns);
}

/* Has everything that was launched on the stream been charged? */
static inline bool meter_is_dry(const struct meter_stream *stream) {
  return __atomic_load_n(&stream->tail, __ATOMIC_ACQUIRE) == __atomic_load_n(&stream->head, __ATOMIC_ACQUIRE);
}

#endif
