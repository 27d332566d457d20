/*
 * The GPU waits for the host: whose doing is it?
 *
 * A program that launches faster than the GPU works has a lead, and the GPU never waits. At the gate it loses that
 * lead, and when it goes on, the GPU waits between its launches until the lead is there again. That is our doing, and
 * is not charged. A program that launches more slowly than the GPU works makes it wait always, and then these gaps are
 * its own use of the GPU: without a limit it has them as well. Which of the two a program is, its pace over some
 * hundred milliseconds tells: the time in which it launches its work, without our waits, against what that work takes.
 *
 * A host that has slept at the gate is slower at first, as it would not be without a limit: a step of PyTorch of 1.5 ms
 * took 2.0 ms after 5 ms of sleep. Such a batch is due what its launches take that host when it is awake. Under a small
 * limit it never is, so every now and then it is let go on for some milliseconds, to see.
 */
#include "meter_parts.h"

#define PACE_NS 200000000LL /* of work */
#define MOST_LEFT_OUT 4     /* of a batch: all but this part */
#define NO_LEAD 0.95
#define OLD_NS 30000000000LL
#define OLD_WEIGHT 8    /* what was seen so long ago counts by this part, once there is something new */
#define AS_USUAL 20     /* within this part */
#define MOST_ASLEEP 2   /* times slower */
#define ASLEEP_WEIGHT 8 /* what a host does that has just slept counts by this part, if nothing better is known */

static int64_t max(int64_t a, int64_t b) {
  return a > b ? a : b;
}

static int64_t min(int64_t a, int64_t b) {
  return a < b ? a : b;
}

/* Once all has been measured, the GPU has nothing to do, whatever was expected. */
void meter_begin_pace(struct meter_stream *stream, int64_t start_ns) {
  stream->gpu_until_ns = meter_is_dry(stream) ? start_ns : max(stream->gpu_until_ns, start_ns);
}

/* Costs may be wrong, but those of kernels that take longer than their launch leave the GPU no time to wait anyway. */
void meter_join_pace(struct meter_stream *stream, int64_t now_ns, int64_t cost_ns) {
  stream->batch.idle_ns += max(0, now_ns - stream->gpu_until_ns);
  stream->gpu_until_ns = max(stream->gpu_until_ns, now_ns) + cost_ns;
}

/* With the claim held; who harvests reads them. */
static void add(int64_t *sum, int64_t more, int64_t *other_sum, int64_t other_more) {
  bool halved = max(*sum + more, *other_sum + other_more) > PACE_NS;
  __atomic_store_n(sum, (*sum + more) >> halved, __ATOMIC_RELAXED);
  __atomic_store_n(other_sum, (*other_sum + other_more) >> halved, __ATOMIC_RELAXED);
}

/* What so many launches take a host that is awake; 0 when that is not known. */
static int64_t awake_ns(const struct pace *pace, uint32_t launches) {
  int64_t seen = __atomic_load_n(&pace->awake_launches, __ATOMIC_RELAXED);
  double each_ns = seen > 0 ? (double)__atomic_load_n(&pace->awake_ns, __ATOMIC_RELAXED) / (double)seen : 0;
  return (int64_t)(each_ns * launches);
}

static bool is_as_usual(const struct pace *pace, const struct batch *batch, int64_t launching_ns) {
  int64_t usual_ns = awake_ns(pace, batch->launches), difference_ns = launching_ns - usual_ns;
  return pace->awake_launches > 0 && max(difference_ns, -difference_ns) <= usual_ns / AS_USUAL;
}

/* Was it last seen long ago, of a host that had not slept? */
static bool is_old(const struct pace *pace, int64_t now_ns) {
  return now_ns - __atomic_load_n(&pace->seen_at_ns, __ATOMIC_RELAXED) > OLD_NS;
}

/* The program may have become another one since. */
static void fade(struct pace *pace) {
  int64_t *sums[] = {&pace->host_ns, &pace->gpu_ns, &pace->awake_ns, &pace->awake_launches};
  for (int i = 0; i < 4; i++)
    __atomic_store_n(sums[i], *sums[i] / OLD_WEIGHT, __ATOMIC_RELAXED);
}

void meter_note_pace(struct meter_stream *stream) {
  struct batch *batch = &stream->batch;
  struct pace *pace = &stream->pace;
  batch->last_launch_ns = stream->last_busy_ns;
  int64_t launching_ns = max(0, batch->last_launch_ns - batch->start_recorded_ns);
  batch->host_ns += launching_ns;
  if (batch->last_is_unknown)
    return;
  bool is_usual = !batch->host_was_asleep || is_as_usual(pace, batch, launching_ns);
  if (is_usual && is_old(pace, batch->last_launch_ns))
    fade(pace);
  if (is_usual)
    __atomic_store_n(&pace->seen_at_ns, batch->last_launch_ns, __ATOMIC_RELAXED);
  else if (!is_old(pace, batch->last_launch_ns))
    return;
  int weight = is_usual ? 1 : ASLEEP_WEIGHT;
  add(&pace->host_ns, batch->host_ns / weight, &pace->gpu_ns, batch->estimate_ns / weight);
  if (!batch->host_was_asleep)
    add(&pace->awake_ns, launching_ns, &pace->awake_launches, batch->launches);
}

/* How much longer the program takes to launch its work than the GPU to do it. */
static double slowness(const struct meter_stream *stream) {
  int64_t host_ns = __atomic_load_n(&stream->pace.host_ns, __ATOMIC_RELAXED);
  int64_t gpu_ns = __atomic_load_n(&stream->pace.gpu_ns, __ATOMIC_RELAXED);
  return gpu_ns > 0 ? (double)host_ns / (double)gpu_ns : 1;
}

/* Where the GPU always waits for the next launch, what a launch costs is learned with the wait. */
bool meter_waits_for_host(const struct meter_stream *stream) {
  return slowness(stream) > NO_LEAD;
}

/* No longer than it takes until the tokens for it are there: other threads want fewer, and might take them for ever. */
bool meter_looks_at_pace(const struct meter_stream *stream, int64_t now_ns) {
  struct meter *meter = stream->meter;
  if (!meter_waits_for_host(stream) || !is_old(&stream->pace, now_ns))
    return false;
  int64_t looked_at_ns = __atomic_load_n(&meter->looked_at_pace_ns, __ATOMIC_RELAXED);
  if (now_ns - looked_at_ns > OLD_NS)
    __atomic_store_n(&meter->looked_at_pace_ns, looked_at_ns = now_ns, __ATOMIC_RELAXED);
  return now_ns - looked_at_ns < METER_PACE_QUANTUM_NS * 100 / meter_percent_of_time(meter);
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
  if (!meter_waits_for_host(stream))
    return work_ns;
  if (!batch->host_was_asleep)
    return measured_ns;
  int64_t usual_ns = awake_ns(&stream->pace, batch->launches);
  if (usual_ns == 0)
    usual_ns = (int64_t)((double)work_ns * slowness(stream));
  return min(measured_ns, max(max(usual_ns, work_ns), measured_ns / MOST_ASLEEP));
}
