/* Batches are paid when they go into flight; what has completed is measured, and the difference is settled. One thread
 * at a time harvests. */
#include "bucket.h"
#include "gate.h"
#include "log.h"
#include "meter_parts.h"
#include "seconds.h"
#include "timeline.h"

#define SHORT_NS 100000LL /* behind a marker: what the GPU takes to go on would be learned as a part of it */
#define AT_ONCE_NS 5000LL /* in which a marker on an idle stream is reached */
/* To tell the others takes some microseconds: a program that waits for short work would lose them each time. */
#define TELL_EVERY_NS 250000LL

/* ---- the bill ---------------------------------------------------------------------------------------------------- */

struct booking {
  const struct meter_bill *bill;
  int64_t now_ns, paid_ns, at_work_since_ns;
  uint32_t percent;
};

static void book(struct vgpu_device_shared *shared, void *how) {
  const struct booking *booking = how;
  const struct meter_bill *bill = booking->bill;
  shared->tokens_zero_at_ns =
      bucket_pay(shared->tokens_zero_at_ns, bill->pay_ns, booking->paid_ns, booking->now_ns, booking->percent);
  shared->at_work_since_ns = booking->at_work_since_ns;
  shared->launches += bill->launches;
  shared->last_launch_ns = booking->now_ns;
  __atomic_add_fetch(&shared->busy_ns, (uint64_t)bill->busy_ns,
                     __ATOMIC_RELAXED); /* a profile reads it without the lock */
  seconds_add(shared, bill->busy_until_ns - bill->busy_ns, bill->busy_until_ns);
}

/* By a thread that harvests. */
static void tell(struct meter *meter, int64_t now_ns) {
  struct meter_bill *bill = &meter->bill;
  bill->pay_ns += swap(meter->to_pay_ns, 0);
  if ((bill->pay_ns == 0 && bill->launches == 0) || now_ns - meter->told_ns < (get(meter->in_step) ? 0 : TELL_EVERY_NS))
    return;
  int64_t paid_ns = swap(meter->to_pay_since_ns, 0);
  int64_t kept_ns = get(meter->turn_wait_ns);
  struct booking booking = {bill, now_ns, (paid_ns != 0 ? paid_ns : now_ns) - kept_ns, gate_at_work_since_ns(meter),
                            meter_terms(meter).percent};
  device_state_change(meter->state, book, &booking);
  *bill = (struct meter_bill){0};
  meter->told_ns = now_ns;
}

static void pay(struct meter *meter, int64_t gpu_ns) {
  int64_t zero_at_ns = get(meter->paid_zero_at_ns), now_ns = meter->driver->now_ns(), paid_ns;
  uint32_t percent = meter_terms(meter).percent;
  do
    paid_ns = bucket_pay(zero_at_ns, gpu_ns, now_ns - get(meter->turn_wait_ns), now_ns, percent);
  while (!replace(meter->paid_zero_at_ns, zero_at_ns, paid_ns));
  int64_t none = 0;
  replace(meter->to_pay_since_ns, none, now_ns);
  add(meter->to_pay_ns, gpu_ns);
}

void meter_not_enforced(struct meter *meter, uint32_t what) {
  device_state_not_enforced(meter->state, what);
}

/* ---- what a batch took ---------------------------------------------------------------------------------------------
 */

static struct timeline *find_timeline(struct meter *meter, const void *context) {
  for (int i = 0; i < METER_MAX_CONTEXTS; i++)
    if (get(meter->timelines[i].context) == context)
      return &meter->timelines[i];
  return NULL;
}

static struct timeline *timeline_of(struct meter_stream *stream) {
  struct meter *meter = stream->meter;
  void *context = get(stream->context);
  struct timeline *timeline = context != NULL ? find_timeline(meter, context) : NULL;
  if (context == NULL || timeline != NULL)
    return timeline;
  if ((timeline = find_timeline(meter, NULL)) == NULL) {
    static int said;
    log_once(&said, LOG_WARNING, "more than %d contexts; the compute limit is not enforced on the others",
             METER_MAX_CONTEXTS);
    meter_not_enforced(meter, VGPU_NOT_ENFORCED_SM);
    return NULL;
  }
  timeline->base = NULL;
  set(timeline->context, context);
  return timeline;
}

/* When the marker completed, between these two. It is recycled unless the timeline keeps it. */
static int64_t place(struct meter_stream *stream, void *marker, int64_t earliest_ns, int64_t latest_ns,
                     bool is_new_base) {
  struct timeline *timeline = timeline_of(stream);
  bool kept = false;
  void *replaced = NULL;
  int64_t end_ns = latest_ns;
  if (timeline != NULL)
    end_ns =
        timeline_place(timeline, stream->meter->driver, marker, earliest_ns, latest_ns, is_new_base, &kept, &replaced);
  meter_recycle(stream, replaced);
  if (!kept)
    meter_recycle(stream, marker);
  return end_ns;
}

/* Beside others, the GPU may have had to switch to us before it reached the marker at the start. */
static int64_t place_end(struct meter_stream *stream, const struct batch *batch, int64_t now_ns) {
  if (batch->start != NULL)
    place(stream, batch->start, batch->start_ns, batch->in_company ? now_ns : batch->start_ns + AT_ONCE_NS, true);
  return batch->end != NULL ? place(stream, batch->end, batch->end_ns, now_ns, false) : batch->end_ns;
}

/* Alone, what the GPU did, which began with the first launch or when the batch before it was done. Beside others also
 * the short pauses before it: they wait that long for a holder of the turn, and the GPU's switch to it takes a part. */
static int64_t start_of(const struct meter_stream *stream, const struct batch *batch) {
  int64_t free_from_ns = max(stream->previous_end_ns, batch->turn_began_ns);
  bool counts = batch->in_company && batch->began_ns - free_from_ns < METER_SPARSE_NS;
  return counts ? free_from_ns : max(batch->began_ns, stream->previous_end_ns);
}

/* How long the GPU was busy with the batch. Between its launches it may have waited for the host, for all but the time
 * since the last one; so it was as long as they usually take, unless it surely was busy for longer since then. */
static int64_t busy_ns(const struct batch *batch, int64_t start_ns, int64_t end_ns) {
  int64_t all_ns = max(end_ns - start_ns, 0);
  int64_t since_last_ns = end_ns - max(start_ns, batch->last_launch_ns);
  bool is_longer = batch->late_ns != INT64_MAX && since_last_ns - batch->late_ns > batch->estimate_ns;
  return min(is_longer ? since_last_ns : batch->estimate_ns, all_ns);
}

static void settle(struct meter_stream *stream, const struct batch *batch, int64_t end_ns) {
  struct meter *meter = stream->meter;
  struct meter_bill *bill = &meter->bill;
  int64_t start_ns = start_of(stream, batch), busy = busy_ns(batch, start_ns, end_ns);
  bool is_behind_marker = batch->began_ns < stream->previous_end_ns;
  if (batch->late_ns == INT64_MAX)
    end_ns = start_ns + busy;
  int64_t all_ns = max(end_ns - start_ns, 0);
  int64_t due_ns = spans_charge(&meter->spans, (struct span){start_ns, end_ns}, batch->in_company ? all_ns : busy);
  stream->previous_end_ns = max(stream->previous_end_ns, end_ns);
  if (get(meter->mixed_until_ns) > end_ns) /* the GPU divides its time between ours and that of another */
    due_ns /= 2;
  else if (!(is_behind_marker && busy < SHORT_NS))
    meter_learn(meter, batch, busy);
  if (stream->observer != NULL)
    stream->observer->measured(stream, batch, end_ns - busy, end_ns);
  pay(meter, due_ns - batch->paid_ns);
  bill->launches += batch->launches;
  bill->busy_ns += due_ns;
  bill->busy_until_ns = max(bill->busy_until_ns, end_ns);
}

/* ---- harvest -------------------------------------------------------------------------------------------------------
 */

static void leave_flight(struct meter_stream *stream, const struct batch *batch) {
  struct meter *meter = stream->meter;
  add(meter->in_flight_ns, -meter_expected_ns(batch));
  add(meter->in_flight_unknown, -(uint32_t)batch->is_unknown);
  add(meter->in_flight_batches, (uint32_t)-1);
  atomic_store_explicit(&stream->tail, get(stream->tail) + 1, memory_order_release);
}

static void drop(struct meter_stream *stream, const struct batch *batch) {
  if (stream->observer != NULL)
    stream->observer->measured(stream, batch, 0, 0);
}

void meter_forget_in_flight(struct meter_stream *stream) {
  while (!meter_is_dry(stream)) {
    const struct batch batch = stream->ring[get(stream->tail) % METER_RING];
    drop(stream, &batch);
    leave_flight(stream, &batch);
  }
}

static void harvest_stream(struct meter_stream *stream) {
  struct meter *meter = stream->meter;
  if (meter_is_destroyed(stream))
    meter_forget_in_flight(stream);
  while (!meter_is_dry(stream)) {
    struct batch *oldest = &stream->ring[get(stream->tail) % METER_RING];
    enum meter_state state = oldest->end != NULL ? meter->driver->query(oldest->end) : METER_DONE;
    int64_t now_ns = meter->driver->now_ns();
    if (state == METER_PENDING) {
      oldest->end_ns = now_ns;
      return;
    }
    const struct batch batch = *oldest;
    oldest->start = oldest->end = oldest->parts = NULL; /* a harvest that is not finished is not done again */
    if (state == METER_DONE) {
      int64_t end_ns = place_end(stream, &batch, now_ns);
      settle(stream, &batch, end_ns);
      gate_note_progress(meter, end_ns, now_ns);
    } else { /* after an error of the context, in which nothing runs any more */
      pay(meter, -batch.paid_ns);
      drop(stream, &batch);
      meter_recycle(stream, batch.start);
      meter_recycle(stream, batch.end);
    }
    leave_flight(stream, &batch);
  }
}

void meter_harvest(struct meter *meter) {
  if (!claim_try(&meter->harvester) && !claim_recover(&meter->harvester))
    return;
  uint32_t count = atomic_load(&meter->stream_count);
  for (uint32_t i = 0; i < count; i++)
    harvest_stream(meter->streams[i]);
  tell(meter, meter->driver->now_ns());
  claim_release(&meter->harvester);
}

void meter_settle(struct meter *meter, int64_t pay_ns) {
  if (pay_ns != 0)
    pay(meter, pay_ns);
  meter_harvest(meter);
}
