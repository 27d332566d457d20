/* Batches are paid when they go into flight; what has completed is measured, and the difference is settled. One thread
 * at a time harvests. */
#include "base/bucket.h"
#include "compute/meter_parts.h"
#include "compute/timeline.h"
#include "shared/history.h"

#include <stdlib.h>

/* The most that a batch took, where no marker before it tells; some more can be added to it. */
#define NOT_MEASURED_NS (INT64_MAX / 2)
/* How many are in a cost's mean, in which the latest counts so little: work of one name may take now more, now less. */
#define MOST_SEEN 16

/* ---- the bill ---------------------------------------------------------------------------------------------------- */

/* While nobody else wants the GPU, the tenant owes nothing for long. */
static int64_t pay(const struct meter_bucket *bucket, int64_t zero_at_ns, int64_t gpu_ns) {
  struct meter *meter = bucket->meter;
  int64_t now_ns = meter->bill.now_ns, kept_from_ns = now_ns - get(meter->contention.turn_wait_ns);
  int64_t paid_ns = bucket_pay(zero_at_ns, gpu_ns, kept_from_ns, now_ns, get(bucket->percent));
  return bucket == &meter->buckets[0] && get(meter->contention.is_free) ? min(paid_ns, now_ns) : paid_ns;
}

static void book(struct vgpu_device_shared *shared, void *paid_into) {
  struct meter_bucket *bucket = paid_into;
  struct meter *meter = bucket->meter;
  const struct meter_bill *bill = &meter->bill;
  shared->tokens_zero_at_ns = pay(bucket, shared->tokens_zero_at_ns, bill->pay_ns);
  set(bucket->zero_at_ns, shared->tokens_zero_at_ns);
  set(bucket->refreshed_ns, bill->now_ns);
  shared->at_work_since_ns = get(meter->in_flight_batches) > 0 ? get(meter->progress_ns) : 0;
  shared->launches += bill->launches;
  shared->last_launch_ns = bill->now_ns;
  shared->busy_ns += (uint64_t)bill->busy_ns;
  gate_note_busy(bucket, shared, bill->busy_ns);
  busy_history_add(shared, bill->busy_until_ns - bill->busy_ns, bill->busy_until_ns);
}

/* A payment is booked in this process's own buckets at once, and in the shared ones a little later. A shared bucket
 * whose zero is later than may be owed is damaged. */
static void tell(struct meter *meter) {
  struct meter_bill *bill = &meter->bill;
  int64_t pay_ns = swap(meter->to_pay_ns, 0);
  bool is_damaged = false;
  if (get(meter->is_governed)) { /* which charges, too */
    *bill = (struct meter_bill){0};
    return;
  }
  bill->now_ns = meter->driver->now_ns();
  bill->pay_ns += pay_ns;
  for (int i = 0; i < meter->bucket_count; i++) {
    struct meter_bucket *bucket = &meter->buckets[i];
    set(bucket->paid_zero_at_ns, pay(bucket, get(bucket->paid_zero_at_ns), pay_ns));
    is_damaged |= get(bucket->zero_at_ns) > pay(bucket, get(bucket->zero_at_ns), 0);
  }
  bool is_news = bill->pay_ns != 0 || bill->launches > 0 || is_damaged;
  /* Telling the others takes some microseconds, which a program that waits for short work would lose each time. But
   * where a GPU has work, the container's other processes go by it. */
  bool is_soon = bill->now_ns - meter->told_ns < METER_REFRESH_NS && llabs(bill->pay_ns) < METER_REFRESH_NS;
  bool is_awaited = get(meter->in_flight_batches) > 0 && gate_is_in_step(meter, bill->now_ns);
  if (!is_news || (is_soon && !is_awaited))
    return;
  meter_terms(meter);
  meter->told_ns = bill->now_ns;
  for (int i = 0; i < meter->bucket_count; i++)
    device_state_change(meter->buckets[i].state, book, &meter->buckets[i]);
  *bill = (struct meter_bill){0};
}

/* ---- what a batch took ------------------------------------------------------------------------------------------ */

/* Threads may race here: a wrong cost is learned anew. */
static void learn(struct meter *meter, const struct batch *batch, int64_t busy_ns) {
  if (batch->launches == 0 || batch->is_mixed || busy_ns == batch->estimate_ns)
    return;
  struct meter_cost *costs = meter_costs_of(meter, batch->work), *cost = NULL;
  for (int i = 0; i < METER_COST_WAYS; i++)
    if (get(costs[i].work) == batch->work || (cost == NULL && get(costs[i].work) == 0))
      cost = &costs[i];
  if (cost == NULL)
    cost = &costs[meter->costs_replaced++ % METER_COST_WAYS];
  bool is_new = get(cost->work) != batch->work;
  int64_t latest_ns = busy_ns / batch->launches, known_ns = is_new ? latest_ns : get(cost->cost_ns);
  uint32_t seen = is_new ? 1 : (uint32_t)min(get(cost->seen) + 1, MOST_SEEN);
  set(cost->cost_ns, max(known_ns + (latest_ns - known_ns) / seen, 1));
  set(cost->seen, seen);
  set(cost->work, batch->work);
}

/* When the marker completed, between these two. In a context beyond as many as have a timeline: when that was seen. */
static int64_t place(struct meter_stream *stream, void *marker, int64_t earliest_ns, int64_t latest_ns) {
  struct meter *meter = stream->meter;
  struct timeline *timeline = NULL;
  void *context = get(stream->context);
  for (int i = 0; i < METER_MAX_CONTEXTS && context != NULL; i++) {
    void *its = get(meter->timelines[i].context);
    if (its == context || (its == NULL && timeline == NULL))
      timeline = &meter->timelines[i];
  }
  if (timeline == NULL) {
    meter_recycle(stream, marker);
    return latest_ns;
  }
  if (get(timeline->context) != context) {
    timeline->base = NULL;
    set(timeline->context, context);
  }
  int64_t at_ns = timeline_place(timeline, meter->driver, marker, earliest_ns, latest_ns);
  set(stream->has_clock, timeline->early_ns == 0);
  return at_ns;
}

/* A marker before the batch tells how long that took at most, and when it ended at the earliest; and exactly, if the
 * stream was idle then. */
static int64_t place_end(struct meter_stream *stream, const struct batch *batch, int64_t now_ns, int64_t *most_ns) {
  int64_t earliest_ns = batch->end_ns, latest_ns = now_ns, took_ns;
  *most_ns = NOT_MEASURED_NS;
  if (batch->start != NULL && batch->end != NULL &&
      stream->meter->driver->elapsed_ns(batch->start, batch->end, &took_ns)) {
    *most_ns = took_ns;
    earliest_ns = min(max(earliest_ns, batch->start_ns + took_ns), now_ns);
    latest_ns = batch->started_idle ? earliest_ns : now_ns;
  }
  meter_recycle(stream, batch->start);
  return batch->end != NULL ? place(stream, batch->end, earliest_ns, latest_ns) : batch->end_ns;
}

/* How long the GPU was busy with the batch. Between its launches it may have waited for the host, for all but the time
 * since the last one; so it was as long as they usually take, unless it surely was busy for longer since then. */
static int64_t busy_ns(const struct batch *batch, int64_t start_ns, int64_t end_ns) {
  int64_t all_ns = max(end_ns - start_ns, 0);
  int64_t since_last_ns = end_ns - max(start_ns, batch->last_launch_ns);
  bool is_longer = batch->late_ns != INT64_MAX && since_last_ns - batch->late_ns > batch->estimate_ns;
  return min(is_longer ? since_last_ns : batch->estimate_ns, all_ns);
}

static void settle(struct meter_stream *stream, const struct batch *batch, int64_t end_ns, int64_t most_ns) {
  struct meter *meter = stream->meter;
  struct meter_bill *bill = &meter->bill;
  int64_t start_ns = max(batch->began_ns, stream->previous_end_ns);
  /* A batch that took longer, by more than a switch between tenants takes, began behind something that is not a
   * launch. In company a batch pays for its turn, whatever used it. */
  bool is_behind = end_ns - start_ns > most_ns + METER_REFRESH_NS / 2 && !batch->in_company;
  if (is_behind)
    start_ns = end_ns - most_ns;
  int64_t busy = busy_ns(batch, start_ns, end_ns);
  bool is_measured = most_ns != NOT_MEASURED_NS;
  /* A batch that took longer than usual may have been behind something: the next ones tell, until a sample was not. */
  if (is_measured ? batch->most_launches == 1 : busy > batch->estimate_ns)
    set(stream->is_behind, is_behind || (!is_measured && !batch->in_company));
  if (batch->late_ns == INT64_MAX)
    end_ns = start_ns + busy;
  int64_t all_ns = max(end_ns - start_ns, 0);
  int64_t due_ns = spans_charge(&meter->spans, (struct span){start_ns, end_ns}, batch->in_company ? all_ns : busy);
  stream->previous_end_ns = max(stream->previous_end_ns, end_ns);
  if (get(meter->contention.mixed_until_ns) > end_ns) /* the GPU divides its time between ours and that of another */
    due_ns /= 2;
  learn(meter, batch, busy);
  if (stream->observer != NULL)
    stream->observer->measured(stream, batch, end_ns - busy, end_ns);
  add(meter->to_pay_ns, due_ns - batch->paid_ns);
  bill->launches += batch->launches;
  bill->busy_ns += due_ns;
  bill->busy_until_ns = max(bill->busy_until_ns, end_ns);
}

/* ---- harvest ----------------------------------------------------------------------------------------------------- */

static void leave_flight(struct meter_stream *stream, const struct batch *batch) {
  struct meter *meter = stream->meter;
  add(meter->in_flight_ns, -batch->estimate_ns);
  add(meter->in_flight_batches, (uint32_t)-1);
  atomic_store_explicit(&stream->tail, get(stream->tail) + 1, memory_order_release);
}

static void harvest_stream(struct meter_stream *stream) {
  struct meter *meter = stream->meter;
  while (!meter_is_dry(stream)) {
    struct batch *oldest = &stream->ring[get(stream->tail) % METER_RING];
    if (oldest->end != NULL && meter_is_destroyed(stream)) { /* with its context, just now: so long it ran */
      oldest->end = NULL;
      oldest->end_ns = meter->driver->now_ns();
      oldest->late_ns = 0;
      oldest->is_mixed = true; /* nobody knows how long it would have taken */
    }
    enum meter_state state = oldest->end != NULL ? meter->driver->query(oldest->end) : METER_DONE;
    int64_t now_ns = meter->driver->now_ns();
    if (state == METER_PENDING) {
      oldest->end_ns = now_ns;
      return;
    }
    const struct batch batch = *oldest;
    oldest->start = oldest->end = oldest->parts = NULL; /* a harvest that is not finished is not done again */
    if (state == METER_DONE) {
      int64_t most_ns, end_ns = place_end(stream, &batch, now_ns, &most_ns);
      settle(stream, &batch, end_ns, most_ns);
      gate_note_progress(meter, end_ns);
    } else {
      /* After an error of the context, in which nothing runs any more: it cannot have run for longer than this. */
      add(meter->to_pay_ns, -max(batch.paid_ns - max(now_ns - batch.began_ns, 0), 0));
      meter_drop(stream, &batch);
    }
    leave_flight(stream, &batch);
  }
}

void meter_harvest(struct meter *meter) {
  if (!claim_try(&meter->harvester) && !claim_recover(&meter->harvester))
    return;
  meter_for_each(meter, harvest_stream);
  tell(meter);
  claim_release(&meter->harvester);
}
