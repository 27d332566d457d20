/* Shared by the files of the meter: compute/meter.c (batches), compute/meter_settle.c, compute/meter_streams.c,
 * compute/gate.c. */
#ifndef VGPU_COMPUTE_METER_PARTS_H
#define VGPU_COMPUTE_METER_PARTS_H

#include "base/claim.h"
#include "base/compiler.h"
#include "compute/meter.h"

/* For fields that threads share without a claim. */
#define get(field) atomic_load_explicit(&(field), memory_order_relaxed)
#define set(field, to) atomic_store_explicit(&(field), to, memory_order_relaxed)
#define add(field, more) atomic_fetch_add_explicit(&(field), more, memory_order_relaxed)
#define swap(field, to) atomic_exchange_explicit(&(field), to, memory_order_relaxed)
#define replace(field, from, to)                                                                                       \
  atomic_compare_exchange_weak_explicit(&(field), &(from), to, memory_order_relaxed, memory_order_relaxed)

/* In flight at most, and never fewer than two batches: it keeps the GPU fed, and the next tenant waits for its end. A
 * launch of which nothing is known is taken to last as long; and it pays so much in advance, which it gets back once it
 * has been measured: else a process that launches once and ends would never pay. */
#define METER_RUN_AHEAD_NS 5000000LL
#define METER_UNKNOWN_PAYS_NS 50000000LL
#define METER_SHORT_SLEEP_NS 20000LL /* with the way back these are 70 us */
/* Between refreshes of the container's tokens, and between payments into them; the least patience; and work that stands
 * still for so long waits. */
#define METER_REFRESH_NS 500000LL
/* Work in flight that makes no progress for so long may wait for a launch that is held at the gate, such as a kernel
 * that waits for another GPU. That is so at first: each meter learns its own. */
#define METER_PATIENCE_NS 100000000LL

/* The first of METER_COST_WAYS places of which the work may have one. With one alone a program of 200 kernels would
 * have some that drive each other out for ever, and never be known. */
static inline struct meter_cost *meter_costs_of(struct meter *meter, uint64_t work) {
  return meter->costs[(work * 0x9e3779b97f4a7c15ULL) >> (64 - METER_COST_SET_BITS)];
}

/* Finds how long a launch of this work usually takes; false, and nothing changes, when it has not been seen. */
static inline bool meter_known_cost(struct meter *meter, uint64_t work, int64_t *cost_ns) {
  struct meter_cost *costs = meter_costs_of(meter, work);
  for (int i = 0; i < METER_COST_WAYS; i++)
    if (get(costs[i].work) == work) {
      *cost_ns = get(costs[i].cost_ns);
      return true;
    }
  return false;
}

static inline void meter_for_each(struct meter *meter, void (*act)(struct meter_stream *stream)) {
  uint32_t count = atomic_load(&meter->stream_count);
  for (uint32_t i = 0; i < count; i++)
    act(meter->streams[i]);
}

static inline bool meter_launched_here(struct meter_stream *stream) {
  return get(stream->launcher) == claim_this_thread();
}

/* The context is destroyed, and its markers with it: they must not be touched any more. */
static inline bool meter_is_destroyed(struct meter_stream *stream) {
  return get(stream->context) == NULL;
}
static inline void meter_recycle(struct meter_stream *stream, void *marker) {
  if (marker != NULL && !meter_is_destroyed(stream))
    stream->meter->driver->recycle(marker);
}

/* Drops a batch that will not be measured. */
static inline void meter_drop(struct meter_stream *stream, const struct batch *batch) {
  if (stream->observer != NULL)
    stream->observer->measured(stream, batch, 0, 0);
  meter_recycle(stream, batch->start);
  meter_recycle(stream, batch->end);
}

/* False when a thread has it for long: it is at the gate, or calls the driver. */
COLD bool meter_claim_again(struct meter_stream *stream);
static inline bool meter_claim(struct meter_stream *stream) {
  return claim_try(&stream->claim) || meter_claim_again(stream);
}
static inline void meter_unclaim(struct meter_stream *stream) {
  claim_release(&stream->claim);
}

/* Waits for a claim of a thread that is at the gate, or hangs in the driver; false when that takes too long. One that
 * was left behind, by the calling thread or one that has ended, is taken over. */
bool meter_claim_patiently(const struct meter_driver *driver, int32_t *claim);

/* May the calling thread ask for the stream? A capture may have reached it by an event. */
bool meter_may_touch(struct meter_stream *stream);

/* Ends the batch, which is no longer open, behind its last launch. The caller holds the claim. */
void meter_end_now(struct meter_stream *stream);

/* Is something of ours on the GPU, as far as is known, or about to be? */
bool meter_has_begun(struct meter *meter);

/* Has everything that was launched on the stream been settled? */
static inline bool meter_is_dry(struct meter_stream *stream) {
  return atomic_load_explicit(&stream->tail, memory_order_acquire) ==
         atomic_load_explicit(&stream->head, memory_order_acquire);
}

/* Waits until a launch of that cost may begin, and returns its batch. The caller holds the claim on the stream, whose
 * batch is not open. All waits are bounded but a pause, which lasts as long as the host wants it. */
struct batch gate_wait(struct meter_stream *stream, int64_t cost_ns);

/* Notes the GPU time of all processes of the container so far, and this one's own_ns of it since the last call. */
void gate_note_busy(struct meter_bucket *bucket, const struct vgpu_device_shared *shared, int64_t own_ns);

/* Has the container launched lately on another GPU, too? */
bool gate_is_in_step(struct meter *meter, int64_t now_ns);

/* Tells processes that wait for our turn that we are at work: for as long as what is in flight may take, and more_ns.
 */
void gate_note_activity(struct meter *meter, int64_t more_ns);

/* Notes that a batch ended at that time. */
void gate_note_progress(struct meter *meter, int64_t end_ns);

#endif
