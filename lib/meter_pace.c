/*
 * The GPU waits for the host: whose doing is it?
 *
 * A program that launches faster than the GPU works has a lead, and the GPU never waits. At the gate it loses that
 * lead, and when it goes on, the GPU waits between its launches until the lead is there again. That is our doing, and
 * is not charged. A program that launches more slowly than the GPU works makes it wait always, and then these gaps are
 * its own use of the GPU: without a limit it has them as well. Which of the two a program is, its pace over some
 * hundred milliseconds tells: the time in which it launches its work, without our waits, against what that work takes.
 * A host that has slept at the gate is slower at first, as it would not be without a limit: a step of PyTorch of 1.5 ms
 * took 2.0 ms after 5 ms of sleep. That counts little.
 */
#include "meter_parts.h"

#define PACE_NS 200000000LL /* of work */
#define MOST_LEFT_OUT 4     /* of a batch: all but this part */
#define ASLEEP_WEIGHT 8     /* what a host does that has just slept counts by this part */

static int64_t max(int64_t a, int64_t b) {
  return a > b ? a : b;
}

static int64_t min(int64_t a, int64_t b) {
  return a < b ? a : b;
}

void meter_begin_pace(struct meter_stream *stream, int64_t start_ns) {
  stream->gpu_until_ns = max(stream->gpu_until_ns, start_ns);
}

/* Costs may be wrong, but those of kernels that take longer than their launch leave the GPU no time to wait anyway. */
void meter_join_pace(struct meter_stream *stream, int64_t now_ns, int64_t cost_ns) {
  stream->batch.idle_ns += max(0, now_ns - stream->gpu_until_ns);
  stream->gpu_until_ns = max(stream->gpu_until_ns, now_ns) + cost_ns;
}

void meter_note_pace(struct meter_stream *stream) {
  struct batch *batch = &stream->batch;
  batch->last_launch_ns = stream->last_busy_ns;
  batch->host_ns += max(0, batch->last_launch_ns - batch->start_recorded_ns);
  if (batch->last_is_unknown)
    return;
  int weight = batch->host_was_asleep ? ASLEEP_WEIGHT : 1;
  int64_t host_ns = stream->pace.host_ns + batch->host_ns / weight;
  int64_t gpu_ns = stream->pace.gpu_ns + batch->estimate_ns / weight;
  int halved = max(host_ns, gpu_ns) > PACE_NS;
  __atomic_store_n(&stream->pace.host_ns, host_ns >> halved, __ATOMIC_RELAXED);
  __atomic_store_n(&stream->pace.gpu_ns, gpu_ns >> halved, __ATOMIC_RELAXED);
}

/* How much longer the program takes to launch its work than the GPU to do it; 1 when it does not. */
static double slowness(const struct meter_stream *stream) {
  int64_t host_ns = __atomic_load_n(&stream->pace.host_ns, __ATOMIC_RELAXED);
  int64_t gpu_ns = __atomic_load_n(&stream->pace.gpu_ns, __ATOMIC_RELAXED);
  return gpu_ns > 0 && host_ns > gpu_ns ? (double)host_ns / (double)gpu_ns : 1;
}

bool meter_waits_for_host(const struct meter_stream *stream) {
  return slowness(stream) > 1;
}

/* How long the GPU can have waited between the launches of a batch: not after the last one. */
static int64_t longest_gaps_ns(const struct batch *batch, int64_t start_ns, int64_t end_ns) {
  return max(0, min(batch->last_launch_ns, end_ns) - start_ns);
}

int64_t meter_work_ns(const struct batch *batch, int64_t start_ns, int64_t end_ns) {
  int64_t measured_ns = end_ns - start_ns;
  if (batch->last_is_unknown)
    return measured_ns;
  int64_t idle_ns = min(batch->idle_ns, longest_gaps_ns(batch, start_ns, end_ns));
  return max(measured_ns - idle_ns, measured_ns / MOST_LEFT_OUT);
}

int64_t meter_due_ns(const struct meter_stream *stream, const struct batch *batch, int64_t start_ns, int64_t end_ns) {
  int64_t measured_ns = end_ns - start_ns, work_ns = meter_work_ns(batch, start_ns, end_ns);
  double times = slowness(stream);
  if (times > 1 && !batch->host_was_asleep)
    return measured_ns;
  return min(measured_ns, (int64_t)((double)work_ns * times));
}
