/* What the files of the gate share: gate.c and gate_turns.c. */
#ifndef VGPU_GATE_PARTS_H
#define VGPU_GATE_PARTS_H

#include "bucket.h"
#include "gate.h"

#define GATE_SHORTEST_SLEEP_NS 20000LL
#define GATE_LATE_BATCH_NS (METER_BATCH_NS / 4) /* after a slice has been used up; together METER_BATCH_NS */

static inline int64_t min(int64_t a, int64_t b) {
  return a < b ? a : b;
}

static inline int64_t max(int64_t a, int64_t b) {
  return a > b ? a : b;
}

static inline uint32_t gate_in_flight_batches(const struct meter *meter) {
  return __atomic_load_n(&meter->in_flight_batches, __ATOMIC_RELAXED);
}

/* Since when work in flight has made no progress. */
static inline int64_t gate_stalled_ns(const struct meter *meter) {
  if (gate_in_flight_batches(meter) == 0)
    return 0;
  return meter->driver->now_ns() - __atomic_load_n(&meter->progress_ns, __ATOMIC_RELAXED);
}

static inline int64_t gate_patience_ns(int64_t expected_ns) {
  return min(max(METER_PATIENCE_NS, expected_ns), BUCKET_MAX_DEBT_NS);
}

/* For display. Room in flight is not counted: there the GPU is busy with our own work. */
static inline int64_t gate_note_wait(struct meter *meter, int64_t began_ns, int64_t ended_ns) {
  if (ended_ns > began_ns)
    __atomic_add_fetch(&meter->device->gate_wait_ns, (uint64_t)(ended_ns - began_ns), __ATOMIC_RELAXED);
  if (ended_ns > began_ns && meter->observer != NULL)
    meter->observer->waited(meter, began_ns, ended_ns);
  return ended_ns - began_ns;
}

/* A part of what is in flight, so that its end is not slept through. */
static inline void gate_sleep_a_little(const struct meter *meter) {
  meter->driver->sleep_ns(min(max(meter_in_flight_ns(meter) / 32, GATE_SHORTEST_SLEEP_NS), 1000000));
}

/* gate_turns.c: are there others with whom the GPU is used in turns; does this process go without a turn, since it is
 * alone or its work does not end; how long it waited for its turn; has its slice been used up, while it still holds
 * the turn; its turn is given up, when its work has drained; it waits, and is there.
 */
bool gate_in_company(struct meter *meter);
bool gate_takes_no_turns(struct meter *meter);
int64_t gate_wait_for_turn(const struct meter_stream *stream);
bool gate_slice_is_used_up(const struct meter *meter);
void gate_drain_and_pass(struct meter *meter);
void gate_note_presence(struct meter *meter);

#endif
