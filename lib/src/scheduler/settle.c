#include "scheduler/governor_parts.h"

#include "base/clock.h"
#include "compute/outstanding.h"

#define ASK_AFTER_NS 4000000LL /* work that nobody has waited for since; then less and less often */
#define AWAY_NS 1000000000LL   /* from the GPU, though nothing holds the work: perhaps there is none any more */

/* Nobody stays on the GPU to do nothing there: who is not on it waits for others. */
static bool is_beside_others(const struct records *records) {
  return records->header != NULL && (records->was_driven_away || !records->is_on);
}

/* Nobody has waited for some work since the last look: is anything left of it? The driver says "no" only where there
 * was nothing for a while. */
static void ask(struct governor *governor, int64_t now_ns, bool had_work_all_the_time) {
  bool is_told = now_ns - governor->had_gpu_ns < AWAY_NS && is_beside_others(&governor->records);
  if (!had_work_all_the_time)
    governor->ask_after_ns = ASK_AFTER_NS;
  if (!had_work_all_the_time || governor->is_off || is_told) {
    governor->ask_at_ns = now_ns + governor->ask_after_ns;
    return;
  }
  if (now_ns < governor->ask_at_ns)
    return;
  uint32_t status = channels_ask_busy(&governor->gpu);
  if (status == RM_OK)
    outstanding_all_done(governor->meter, NULL, now_ns);
  governor->ask_after_ns = status == RM_OK ? ASK_AFTER_NS : min(2 * governor->ask_after_ns, governor->period_ns);
  governor->ask_at_ns = now_ns + governor->ask_after_ns;
}

static int64_t wall_clock_ns(void) {
  struct timespec now;
  clock_gettime(CLOCK_REALTIME, &now);
  return (int64_t)now.tv_sec * 1000000000 + now.tv_nsec;
}

int64_t governor_period_began_ns(const struct governor *governor, int64_t now_ns) {
  return now_ns - wall_clock_ns() % governor->period_ns;
}

/* Returns what is owed beyond what the next period will have. */
static int64_t owed_ns(struct governor *governor, int64_t now_ns) {
  int64_t late_ns = account_open_at_ns(&governor->account, now_ns) - governor_period_began_ns(governor, now_ns) -
                    2 * governor->period_ns;
  return late_ns * governor->account.terms.percents[governor->account.slowest] / 100;
}

/* Adds for how long we were on the GPU, as that has recorded it; without records, for how long we may have been.
 * Returns whether that is all until now. */
static bool add_on(struct governor *governor, int64_t had_work_ns, bool all) {
  if (governor->records.header == NULL) {
    governor->on_ns = governor->worked_ns;
    return true;
  }
  int64_t on_ns = records_read_ns(&governor->records, &governor->gpu, all);
  governor->on_ns += on_ns;
  if (on_ns > 0 || governor->records.is_on)
    governor->had_gpu_ns = clock_now_ns();
  governor->unseen_ns = on_ns > 0 || governor->records.has_come ? 0 : governor->unseen_ns + had_work_ns;
  return governor->records.is_complete;
}

/* Takes what is to be charged. What is not known yet may be so later, and was in the same time with work. */
static int64_t take_used_ns(struct governor *governor, int64_t had_work_ns, int64_t now_ns, bool all) {
  governor->worked_ns += had_work_ns;
  bool is_all = add_on(governor, had_work_ns, all);
  int64_t used_ns = min(governor->on_ns, governor->worked_ns);
  governor->worked_ns = is_all ? 0 : governor->worked_ns - used_ns;
  governor->on_ns = is_all ? min(governor->on_ns - used_ns, clock_now_ns() - now_ns) : governor->on_ns - used_ns;
  return used_ns;
}

/* Charges the time in which we were on the GPU, but no more than that in which we had work: a context that nobody
 * drives away stays there with nothing to do. */
static struct account_entry had(struct governor *governor, bool all) {
  struct meter *meter = governor->meter;
  int64_t now_ns = clock_now_ns(), passed_ns = now_ns - governor->settled_ns;
  int64_t had_work_ns = min(outstanding_take_ns(meter, now_ns), passed_ns);
  struct account_entry entry = {.now_ns = now_ns, .launches = swap(meter->launches, 0)};
  if (had_work_ns > 0 && !governor->is_off)
    entry.used_ns = take_used_ns(governor, had_work_ns, now_ns, all);
  entry.used_ns = samples_charge(&governor->samples, wall_clock_ns(), entry.used_ns);
  if (governor->is_off && governor->samples.credit_ns > 0)
    entry.used_ns -= samples_give_back(&governor->samples, owed_ns(governor, now_ns));
  if (governor->is_off && outstanding_any(meter))
    entry.held_ns = now_ns - governor->noted_off_ns;
  governor->noted_off_ns = now_ns;
  governor->is_at_work = governor->is_off || had_work_ns > 0 || outstanding_any(meter);
  governor->settled_ns = now_ns;
  ask(governor, now_ns, had_work_ns == passed_ns);
  return entry;
}

static void settle(struct governor *governor, bool all) {
  struct account_entry entry = had(governor, all);
  account_enter(&governor->account, &entry);
}

void governor_settle(struct governor *governor) {
  settle(governor, true);
}

/* Likewise, where nothing has taken us off the GPU but others. */
void governor_settle_and_compare(struct governor *governor) {
  settle(governor, false);
  samples_look(&governor->samples, !governor->records.was_driven_away);
  governor->records.was_driven_away = false;
}
