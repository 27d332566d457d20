#include "scheduler/governor_parts.h"

#include "base/clock.h"
#include "compute/outstanding.h"

#define LONGEST_PERIOD_NS (16 * GOVERNOR_PERIOD_NS)
#define PERIOD_BESIDE_HIGHER_NS (4 * GOVERNOR_PERIOD_NS) /* requests of high priority wait for switches, too */
#define MOST_OF_CALLS 0.1          /* of the time, for one call of each process; a longer period has fewer */
#define SLICE_AT_ALL_US 20000      /* of the GPU's own time-slicing, for 100 percent */
#define SLICE_BESIDE_HIGHER_US 100 /* a request of high priority waits for as long */
#define SLICE_OF_SEVERAL_US 1000   /* likewise, where several of lower priority drive each other away all the time */
#define SET_SLICES_NS 500000000LL  /* again: what is set before the driver schedules a group is lost */

/* ---- slices ------------------------------------------------------------------------------------------------------ */

static uint64_t wanted_slice_us(const struct governor *governor, struct tenants_view others) {
  uint32_t percent = governor->account.terms.percents[0];
  if (others.higher_priority)
    return others.peer || others.siblings > 0 ? SLICE_OF_SEVERAL_US : SLICE_BESIDE_HIGHER_US;
  if (percent >= VGPU_NO_SM_LIMIT && !others.peer)
    return GOVERNOR_DEFAULT_SLICE_US;
  return (uint64_t)max(percent * SLICE_AT_ALL_US / 100, GOVERNOR_LEAST_SLICE_US) / (uint64_t)(others.siblings + 1);
}

/* Takes no answer for one about switches: a driver may set slices, and refuse to switch. */
void governor_set_slices(struct governor *governor, int64_t now_ns) {
  governor->others = tenants_refresh(governor->meter->tenants, true);
  uint64_t slice_us = wanted_slice_us(governor, governor->others);
  bool is_recent = now_ns - governor->sliced_ns < SET_SLICES_NS && governor->sliced == channels_generation();
  if (slice_us == governor->slice_us && (is_recent || slice_us == GOVERNOR_DEFAULT_SLICE_US))
    return;
  governor->sliced = channels_generation();
  governor->sliced_ns = now_ns;
  governor->slice_us = slice_us;
  (void)channels_set_slice(&governor->gpu, slice_us);
}

/* ---- the switch -------------------------------------------------------------------------------------------------- */

static bool is_answered(struct governor *governor, uint32_t status, int64_t now_ns) {
  governor->refused_ns = status == RM_OK ? 0 : governor->refused_ns != 0 ? governor->refused_ns : now_ns;
  return status == RM_OK;
}

/* Notes how long a call took, and fits the period to it: the GPU's firmware carries out the calls of all processes one
 * after the other. A host that holds up a single call changes nothing. */
static void note_duration(struct governor *governor, int64_t took_ns) {
  governor->calls_ns = min(took_ns, governor->calls_ns + governor->calls_ns / 4);
  int64_t least_ns = governor->others.higher_priority ? PERIOD_BESIDE_HIGHER_NS : GOVERNOR_PERIOD_NS;
  double all_ns = (double)governor->calls_ns * (governor->others.siblings + governor->others.tenants + 1);
  while (all_ns > MOST_OF_CALLS * (double)governor->period_ns && governor->period_ns < LONGEST_PERIOD_NS)
    governor->period_ns *= 2;
  while (all_ns < MOST_OF_CALLS / 3 * (double)governor->period_ns && governor->period_ns > least_ns)
    governor->period_ns /= 2;
  governor->period_ns = max(governor->period_ns, least_ns);
}

static void note_off(struct governor *governor, int64_t began_ns, int64_t now_ns) {
  note_duration(governor, now_ns - began_ns);
  governor_settle(governor);
  records_note_off(&governor->records, &governor->gpu);
  outstanding_note_off(governor->meter, clock_now_ns());
  governor->records.was_driven_away = false;
  if (!governor->is_off)
    governor->off_ns = governor->noted_off_ns = now_ns;
}

/* A new context's channels are not off, and what they do breaks nothing. */
static void note_on(struct governor *governor, uint32_t generation, bool ended_a_kernel, int64_t now_ns) {
  const struct meter_observer *observer = governor->meter->observer;
  bool ran = (governor->records.ran_while_off || ended_a_kernel) && governor->switched == generation;
  governor->broken = ran ? governor->broken + 1 : 0;
  records_note_on(&governor->records);
  governor->records.was_driven_away = false;
  if (observer == NULL)
    return;
  observer->waited(governor->meter, governor->off_ns, now_ns);
  observer->was_off(governor->meter, governor->off_ns, now_ns);
}

/* A list with a channel that has been freed meanwhile is refused, though not always all of it: the next one is without
 * it. Of a context that was being made the list has not all channels, and the driver puts it back. */
void governor_turn(struct governor *governor, bool off) {
  bool ended_a_kernel = !off && outstanding_note_on(governor->meter);
  if (!off) /* nothing ran, and to be taken off is not to be driven away */
    records_read_ns(&governor->records, &governor->gpu, true);
  int64_t began_ns = clock_now_ns();
  uint32_t generation = channels_generation(), status = channels_switch(&governor->gpu, off);
  int64_t now_ns = clock_now_ns();
  governor->may_be_off |= off;
  if (!is_answered(governor, status, now_ns))
    return;
  if (off)
    note_off(governor, began_ns, now_ns);
  else if (governor->is_off)
    note_on(governor, generation, ended_a_kernel, now_ns);
  governor->switched = generation;
  governor->is_off = governor->may_be_off = off;
}

/* Returns for how long the period's tokens last where they go on as fast as they have lately: all processes of the
 * container have used some. */
static int64_t lasts_ns(struct governor *governor, int64_t open_ns, int64_t end_ns, int64_t now_ns) {
  int64_t passed_ns = now_ns - governor->paced_at_ns, burnt_ns = open_ns - governor->paced_open_ns;
  double own = governor->is_at_work ? 100.0 / governor->account.terms.percents[governor->account.slowest] : 1;
  double pace = passed_ns > 0 && passed_ns < governor->period_ns ? (double)burnt_ns / (double)passed_ns : 0;
  governor->paced_at_ns = now_ns;
  governor->paced_open_ns = open_ns;
  return (int64_t)((double)(end_ns - open_ns) / (pace > own ? pace : own));
}

/* All that accrues in a period may be had from its beginning on. So each period has its own part, whatever the one
 * before had, and the process is on at the same times on all of its GPUs. Where less than half of a period's tokens are
 * there, the next one is waited for. Returns for how long nothing is to be done. */
int64_t governor_switch_as_due(struct governor *governor) {
  int64_t now_ns = clock_now_ns(), open_ns = account_open_at_ns(&governor->account, now_ns);
  int64_t begin_ns = governor_period_began_ns(governor, now_ns), end_ns = begin_ns + governor->period_ns;
  bool is_paused = governor->account.terms.paused && governor->is_at_work;
  bool may_begin = open_ns <= begin_ns + governor->period_ns / 2;
  bool must = is_paused || open_ns > end_ns;
  if (must && (!governor->is_off || governor->switched != channels_generation()))
    governor_turn(governor, true);
  else if (!must && governor->may_be_off && (may_begin || !governor->is_off))
    governor_turn(governor, false);
  now_ns = clock_now_ns();
  if (governor->is_off)
    return min(max(end_ns - now_ns, 0), GOVERNOR_LONGEST_TICK_NS);
  return min(max(lasts_ns(governor, open_ns, end_ns, now_ns), GOVERNOR_SHORTEST_TICK_NS), GOVERNOR_LONGEST_TICK_NS);
}
