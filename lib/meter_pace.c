/*
 * The GPU waits for the host: whose doing is it?
 *
 * A program that launches faster than the GPU works has a lead, and the GPU never waits. At the gate it loses that
 * lead, and when it goes on, the GPU waits between its launches until the lead is there again. That is our doing, and
 * is not charged. A program that launches more slowly than the GPU works makes it wait always, and then these gaps are
 * its own use of the GPU: without a limit it has them as well. So we go by the lead that the program would have without
 * a limit: each launch adds what it takes the GPU, and what the host took for it, without our waits, uses it up. Where
 * there is none left, the GPU would wait, too.
 *
 * A host that has slept at the gate is slower at first, as it would not be without a limit: a step of PyTorch of 1.5 ms
 * took 2.0 ms after 5 ms of sleep, on one machine for two milliseconds, on another for more than 24. Its time counts as
 * what it takes when it has been awake for long. Under a small limit it never is, so every now and then it is let go on
 * for some milliseconds, to see.
 */
#include "meter_parts.h"

#define PACE_NS 200000000LL /* of work: what was longer ago counts less and less */
#define MOST_LEFT_OUT 4     /* of a batch: all but this part */
#define MOST_LEAD_NS 100000000LL
#define SHORT_PART 10              /* of the work before it: a gap */
#define LONGEST_SHORT_NS 1000000LL /* at 10 it costs ten times as much: a rest is not to become a stall */
#define OLD_NS 30000000000LL
#define MOST_ASLEEP 2.0    /* times slower */
#define AS_USUAL 1.05      /* times slower, at most */
#define MAKES_IT_WAIT 0.01 /* of the time, at least */

static int64_t max(int64_t a, int64_t b) {
  return a > b ? a : b;
}

static int64_t min(int64_t a, int64_t b) {
  return a < b ? a : b;
}

/* ---- how much slower the host is after a sleep --------------------------------------------------------------------
 */

static const int64_t ages_ns[METER_AGES - 1] = {6000000, 12000000, 24000000};
#define AWAKE 2 /* from this age on there is something to go by */

uint8_t meter_host_age(int64_t awake_ns) {
  uint8_t age = 0;
  while (age < METER_AGES - 1 && awake_ns >= ages_ns[age])
    age++;
  return age;
}

/* With the claim held; who harvests reads it. */
static void set(struct pace *pace, int64_t ns, int64_t of) {
  __atomic_store_n(&pace->ns, ns, __ATOMIC_RELAXED);
  __atomic_store_n(&pace->of, of, __ATOMIC_RELAXED);
}

static void add(struct pace *pace, int64_t more_ns, int64_t more_of) {
  int64_t ns = pace->ns + more_ns, of = pace->of + more_of;
  int halved = max(ns, of) > PACE_NS;
  set(pace, ns >> halved, of >> halved);
}

/* 0 when it is not known. */
static double each_ns(const struct pace *pace) {
  int64_t ns = __atomic_load_n(&pace->ns, __ATOMIC_RELAXED), of = __atomic_load_n(&pace->of, __ATOMIC_RELAXED);
  return of > 0 ? (double)ns / (double)of : 0;
}

static bool is_old(const struct meter_stream *stream, int age, int64_t now_ns, int64_t old_ns) {
  return now_ns - __atomic_load_n(&stream->seen_at_ns[age], __ATOMIC_RELAXED) > old_ns;
}

/* When it has been awake for as long as was seen of late; 0 when it is not known. */
static double awake_ns(const struct meter_stream *stream, int64_t now_ns) {
  int age = METER_AGES - 1;
  while (age > 0 && is_old(stream, age, now_ns, 2 * OLD_NS))
    age--;
  return age > 0 ? each_ns(&stream->paces[age]) : 0;
}

static double times_slower(const struct meter_stream *stream, int age, int64_t now_ns) {
  double usual_ns = awake_ns(stream, now_ns), present_ns = each_ns(&stream->paces[age]);
  if (usual_ns == 0 || present_ns <= usual_ns)
    return 1;
  return present_ns < usual_ns * MOST_ASLEEP ? present_ns / usual_ns : MOST_ASLEEP;
}

/* Of late the host was not awake for long. */
static bool is_never_awake(const struct meter_stream *stream, int64_t now_ns) {
  for (int age = AWAKE; age < METER_AGES; age++)
    if (!is_old(stream, age, now_ns, OLD_NS))
      return false;
  return true;
}

/* No longer than it takes until the tokens for it are there: other threads want fewer, and might take them for ever. */
bool meter_looks_at_pace(const struct meter_stream *stream, int64_t now_ns) {
  struct meter *meter = stream->meter;
  double present_ns = each_ns(&stream->paces[0]), usual_ns = awake_ns(stream, now_ns);
  bool is_slower = present_ns > AS_USUAL * usual_ns; /* also when it is not known what is usual */
  if (each_ns(&stream->own_gaps) < MAKES_IT_WAIT || !is_slower || !is_never_awake(stream, now_ns))
    return false;
  int64_t looked_at_ns = __atomic_load_n(&meter->looked_at_pace_ns, __ATOMIC_RELAXED);
  if (now_ns - looked_at_ns > OLD_NS)
    __atomic_store_n(&meter->looked_at_pace_ns, looked_at_ns = now_ns, __ATOMIC_RELAXED);
  return now_ns - looked_at_ns < METER_PACE_QUANTUM_NS * 100 / meter_percent_of_time(meter);
}

/* What was seen long ago may have been another program. */
static void note_host(struct meter_stream *stream, int64_t launching_ns) {
  const struct batch *batch = &stream->batch;
  struct pace *pace = &stream->paces[batch->host_age];
  if (is_old(stream, batch->host_age, batch->last_launch_ns, OLD_NS))
    set(pace, 0, 0);
  add(pace, launching_ns, batch->launches - 1);
  __atomic_store_n(&stream->seen_at_ns[batch->host_age], batch->last_launch_ns, __ATOMIC_RELAXED);
}

void meter_note_pace(struct meter_stream *stream) {
  struct batch *batch = &stream->batch;
  batch->last_launch_ns = stream->last_busy_ns;
  meter_raise(&stream->meter->last_busy_ns, batch->last_launch_ns);
  batch->idle_ns += max(0, batch->end_recorded_ns - stream->gpu_until_ns);
  if (batch->last_is_unknown)
    return;
  int64_t launching_ns = max(0, batch->last_launch_ns - batch->start_recorded_ns);
  if (batch->launches > 1)
    note_host(stream, launching_ns);
  __atomic_store_n(&stream->usual_cost_ns, batch->estimate_ns / batch->launches, __ATOMIC_RELAXED);
  add(&stream->own_gaps, batch->own_gap_ns + batch->own_idle_ns, batch->estimate_ns);
}

/* ---- the GPU's time ------------------------------------------------------------------------------------------------
 */

/* A program that has waited for the GPU has no more lead than what it had launched since. */
void meter_note_wait(struct meter_stream *stream) {
  if (!__atomic_load_n(&stream->waited, __ATOMIC_RELAXED))
    return;
  int64_t left_ns = meter_is_dry(stream) ? 0 : stream->gpu_until_ns - stream->last_busy_ns;
  stream->lead_ns = min(stream->lead_ns, max(0, left_ns));
}

/* Once all has been measured, the GPU has nothing to do, whatever was expected. */
void meter_begin_pace(struct meter_stream *stream, int64_t start_ns) {
  stream->gpu_until_ns = meter_is_dry(stream) ? start_ns : max(stream->gpu_until_ns, start_ns);
  stream->host_scale = 1 / times_slower(stream, stream->batch.host_age, start_ns);
}

/* The host was silent, and had no lead for that. A gap that is short against the work since it last was counts up to a
 * millisecond: a program that has a turnaround of half of that after steps of seven keeps the GPU to itself, and is to
 * get that part of its speed. Of one that is a little longer less counts, and not all at once nothing: without our
 * waits it might be shorter. */
static SELDOM int64_t counted_ns(struct meter_stream *stream, int64_t gap_ns) {
  int64_t short_ns = min(max(METER_SPARSE_NS, stream->burst_ns / SHORT_PART), LONGEST_SHORT_NS);
  stream->burst_ns = 0;
  return min(gap_ns, max(0, 4 * short_ns - 3 * gap_ns));
}

/* How long the GPU would wait for this launch without a limit. A long gap is no use of it. */
static HOT int64_t own_gap_ns(struct meter_stream *stream, int64_t host_ns, int64_t cost_ns) {
  int64_t lead_ns = stream->lead_ns - (int64_t)((double)max(0, host_ns) * stream->host_scale);
  stream->lead_ns = min(max(0, lead_ns) + cost_ns, MOST_LEAD_NS);
  int64_t gap_ns = max(0, -lead_ns);
  if (__builtin_expect(host_ns > METER_SPARSE_NS && gap_ns > 0, 0))
    gap_ns = counted_ns(stream, gap_ns);
  stream->burst_ns += cost_ns;
  return gap_ns;
}

/* Costs may be wrong, but those of kernels that take longer than their launch leave the GPU no time to wait anyway. */
HOT void meter_join_pace(struct meter_stream *stream, int64_t now_ns, int64_t host_ns, int64_t cost_ns) {
  struct batch *batch = &stream->batch;
  batch->idle_ns += max(0, now_ns - stream->gpu_until_ns);
  stream->gpu_until_ns = max(stream->gpu_until_ns, now_ns) + cost_ns;
  *(batch->launches == 0 ? &batch->own_gap_ns : &batch->own_idle_ns) += own_gap_ns(stream, host_ns, cost_ns);
}

void meter_wait_pace(struct meter_stream *stream) {
  struct batch *batch = &stream->batch;
  batch->own_idle_ns += own_gap_ns(stream, batch->end_recorded_ns - stream->last_busy_ns, 0);
}

/* While the batch could still grow, the GPU may have waited for a launch; then for the marker of its end. */
static int64_t growing_ns(const struct batch *batch, int64_t start_ns, int64_t end_ns) {
  int64_t until_ns = max(batch->last_launch_ns, batch->end_recorded_ns);
  return batch->last_is_unknown ? 0 : max(0, min(until_ns, end_ns) - start_ns);
}

static int64_t idle_ns(const struct batch *batch, int64_t start_ns, int64_t end_ns) {
  return min(batch->idle_ns, growing_ns(batch, start_ns, end_ns));
}

static int64_t without(int64_t measured_ns, int64_t left_out_ns) {
  return max(measured_ns - left_out_ns, measured_ns / MOST_LEFT_OUT);
}

int64_t meter_work_ns(const struct batch *batch, int64_t start_ns, int64_t end_ns) {
  return without(end_ns - start_ns, idle_ns(batch, start_ns, end_ns));
}

int64_t meter_certain_work_ns(const struct batch *batch, int64_t start_ns, int64_t end_ns) {
  int64_t measured_ns = end_ns - start_ns, surely_ns = measured_ns - growing_ns(batch, start_ns, end_ns);
  return min(max(batch->estimate_ns, surely_ns), measured_ns);
}

int64_t meter_due_ns(const struct batch *batch, int64_t start_ns, int64_t end_ns) {
  int64_t our_doing_ns = max(0, idle_ns(batch, start_ns, end_ns) - batch->own_idle_ns);
  return batch->own_gap_ns + without(end_ns - start_ns, our_doing_ns);
}
