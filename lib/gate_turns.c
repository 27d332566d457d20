/* A process's turn on the GPU: kept while its slice lasts, and passed on when its work has drained. */
#include "gate_parts.h"
#include "log.h"
#include "meter_parts.h"

#define LATE_NS 100000LL /* how late a sleep may end */

/* How long until what is in flight should be done. */
static int64_t left_ns(const struct meter *meter) {
  int64_t busy_from_ns = __atomic_load_n(&meter->busy_from_ns, __ATOMIC_RELAXED);
  return busy_from_ns + meter_in_flight_ns(meter) - meter->driver->now_ns();
}

/* Neither the last moment is slept through, since a sleep ends late, nor all that comes before it: the work may take
 * less than was expected of it. The GPU would be idle meanwhile. */
static void wait_for_work_in_flight(struct meter *meter) {
  int64_t expected_ns = left_ns(meter);
  if (expected_ns > LATE_NS)
    meter->driver->sleep_ns(min(min(expected_ns / 4, expected_ns - LATE_NS), 1000000));
  else if (expected_ns < -LATE_NS)
    gate_sleep_a_little(meter);
  meter_harvest(meter);
}

/* The next one is to find the GPU free: if two were there at once, each would be measured with the other's time. */
void gate_drain_and_pass(struct meter *meter) {
  meter_close_all(meter);
  int64_t give_up_ns = meter->driver->now_ns() + METER_PATIENCE_NS;
  meter_harvest(meter);
  while (gate_in_flight_batches(meter) > 0 && meter->driver->now_ns() < give_up_ns) {
    turns_announce_pass(&meter->turns, meter->driver->now_ns() + left_ns(meter));
    wait_for_work_in_flight(meter);
  }
  turns_pass(&meter->turns, gate_in_flight_batches(meter) == 0);
}

bool gate_in_company(struct meter *meter) {
  return meter->takes_turns && meter_terms(meter).takes_turns && turns_have_company(&meter->turns);
}

/* Is there work in flight that makes no progress, for much longer than was expected of it? It would hold the turn from
 * the others, again and again. */
static bool is_stuck(struct meter *meter) {
  meter_harvest(meter);
  return gate_stalled_ns(meter) > gate_patience_ns(2 * meter_in_flight_ns(meter));
}

/* Work that does not end is left to the GPU's own time-slicing. */
bool gate_takes_no_turns(struct meter *meter) {
  if (!gate_in_company(meter))
    return true;
  bool stuck = is_stuck(meter);
  turns_set_stuck(&meter->turns, stuck);
  if (stuck)
    turns_pass(&meter->turns, false);
  return stuck;
}

static int64_t late_ns(const struct meter *meter) {
  return __atomic_load_n(&meter->late_ns, __ATOMIC_RELAXED);
}

bool gate_slice_is_used_up(const struct meter *meter) {
  return late_ns(meter) > 0;
}

static void set_late_ns(struct meter *meter, int64_t to) {
  __atomic_store_n(&meter->late_ns, to, __ATOMIC_RELAXED);
}

/* While the last work of a slice is on the GPU, the host need not stand still: where it is slower than the GPU for some
 * milliseconds, as in an optimizer, that is hidden now, and else would come first in the next slice, without a lead. */
static bool goes_on(const struct meter_stream *stream) {
  struct meter *meter = stream->meter;
  if (!turns_must_pass(&meter->turns, meter_in_flight_ns(meter))) {
    set_late_ns(meter, 0);
    return true;
  }
  int64_t all_ns = late_ns(meter) + max(GATE_LATE_BATCH_NS, __atomic_load_n(&stream->usual_cost_ns, __ATOMIC_RELAXED));
  bool may = all_ns <= METER_BATCH_NS && left_ns(meter) > TURNS_GRACE_NS;
  if (may)
    set_late_ns(meter, all_ns);
  return may;
}

int64_t gate_wait_for_turn(const struct meter_stream *stream) {
  struct meter *meter = stream->meter;
  if (gate_takes_no_turns(meter))
    return 0;
  int64_t began_ns = meter->driver->now_ns();
  if (!goes_on(stream))
    gate_drain_and_pass(meter);
  if (turns_is_ours(&meter->turns)) /* to look is no wait: the host keeps its lead */
    return 0;
  meter_close_all(meter); /* other streams' batches: the wait would be measured in them */
  if (!turns_take(&meter->turns))
    log_line(LOG_INFO, "no turn on the GPU in %lld ms; going ahead without", TURNS_PATIENCE_NS / 1000000);
  int64_t ended_ns = meter->driver->now_ns();
  __atomic_store_n(&meter->took_turn_ns, ended_ns, __ATOMIC_RELAXED);
  set_late_ns(meter, 0);
  return gate_note_wait(meter, began_ns, ended_ns);
}

/* Kernels of one name may take now one and now ten milliseconds: at work for as long as what is in flight may take, and
 * not only should. Otherwise the turn would be taken from them, and the GPU would mix the two. */
void gate_note_activity(struct meter *meter, int64_t more_ns) {
  int64_t now_ns = meter->driver->now_ns();
  __atomic_store_n(&meter->device->last_launch_ns, now_ns, __ATOMIC_RELAXED);
  if (!meter->takes_turns)
    return;
  int64_t at_most_percent = 100 + __atomic_load_n(&meter->overrun_percent, __ATOMIC_RELAXED);
  turns_note_activity(&meter->turns, now_ns + meter_in_flight_ns(meter) * at_most_percent / 100 + more_ns);
}

/* Who waits is there. */
void gate_note_presence(struct meter *meter) {
  if (meter->takes_turns)
    turns_note_presence(&meter->turns);
}
