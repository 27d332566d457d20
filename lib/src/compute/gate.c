#include "compute/gate.h"

#include "base/bucket.h"
#include "compute/meter_parts.h"
#include "compute/outstanding.h"

/* Between two settlements, each of which writes to the usage file: some microseconds. */
#define SETTLE_NS 1000000LL
/* What is launched ahead on a stream takes about as long: with more, a limit would be exceeded for seconds; with less,
 * the GPU would idle more often. */
#define RUN_AHEAD_NS 5000000LL
/* Work may wait for a launch that is held here, such as a kernel that spins until another one has run. */
#define PATIENCE_NS 100000000LL
/* Between two looks whether work has ended: what it is late by is charged, too. */
#define WORK_SLEEP_NS 100000LL

/* ---- the account ------------------------------------------------------------------------------------------------- */

/* Others are told that we are here: their slices, and the parts of those
 * with weights, go by that. */
static void settle(struct meter *meter, int64_t now_ns, int64_t held_ns) {
  struct gate *gate = &meter->gate;
  claim_take(&gate->claim);
  int64_t settled_ns = get(gate->settled_ns);
  struct account_entry entry = {.now_ns = now_ns,
                                .used_ns = max(min(outstanding_take_ns(meter, now_ns), now_ns - settled_ns), 0),
                                .held_ns = held_ns,
                                .since_ns = settled_ns,
                                .launches = swap(meter->launches, 0)};
  if (settled_ns == 0)
    meter->note_limiter(meter->owner, VGPU_LIMITER_LAUNCHES);
  set(gate->settled_ns, now_ns);
  gate->account.terms = meter->terms(meter->owner);
  tenants_refresh(meter->tenants, false);
  gate->account.kept_ns = entry.used_ns; /* what has accrued meanwhile */
  account_enter(&gate->account, &entry);
  set(gate->open_at_ns, gate->account.terms.paused ? INT64_MAX : account_open_at_ns(&gate->account, now_ns));
  claim_release(&gate->claim);
}

void gate_settle(struct meter *meter) {
  if (get(meter->gate.settled_ns) != 0)
    settle(meter, meter->driver->now_ns(), 0);
}

static bool is_settled(struct meter *meter, int64_t now_ns) {
  return now_ns - get(meter->gate.settled_ns) < SETTLE_NS;
}

void gate_settle_now_and_then(struct meter *meter, int64_t now_ns) {
  if (!is_settled(meter, now_ns))
    settle(meter, now_ns, 0);
}

/* ---- launches ---------------------------------------------------------------------------------------------------- */

struct wait {
  struct meter *meter;
  bool drains; /* enough has been launched ahead: it waits for the end of that */
  int64_t began_ns, now_ns;
  int64_t idle_ns; /* when nothing was left of the thread's own work; 0: there is some */
  int64_t held_ns; /* for tokens, or by a pause; not for the own work */
};

/* A launch that is held goes on where work has made no end of itself meanwhile: after as long as that had been there
 * before, so that few do where kernels take seconds. */
static bool has_patience(const struct wait *wait, int64_t work_since_ns) {
  int64_t patience_ns = max(wait->began_ns - work_since_ns, PATIENCE_NS);
  return wait->now_ns - wait->began_ns < min(patience_ns, BUCKET_MOST_DEBT_NS);
}

static bool waits_for_tokens(struct wait *wait) {
  struct meter *meter = wait->meter;
  int64_t open_ns = get(meter->gate.open_at_ns);
  if (open_ns == INT64_MAX)
    wait->began_ns = wait->now_ns; /* a pause takes no patience */
  return open_ns > wait->now_ns && (!outstanding_any(meter) || has_patience(wait, get(meter->outstanding.since_ns)));
}

/* Nothing is bounded where nothing is limited: only a pause could hold it. */
static bool waits_for_own_work(struct wait *wait, int64_t since_ns) {
  return wait->drains && wait->idle_ns == 0 && get(wait->meter->gate.open_at_ns) != 0 && has_patience(wait, since_ns);
}

static bool is_held(struct wait *wait) {
  struct meter *meter = wait->meter;
  wait->now_ns = meter->driver->now_ns();
  int64_t since_ns = outstanding_ask(meter, wait->now_ns);
  if (since_ns == INT64_MAX && wait->idle_ns == 0)
    wait->idle_ns = wait->now_ns;
  settle(meter, wait->now_ns, 0);
  return waits_for_tokens(wait) || waits_for_own_work(wait, since_ns);
}

/* How many launches take some milliseconds is found out by how long their end takes. A stream that is idle now and then
 * begins anew, so that no more are ahead than are launched between two settlements. */
static void fit_burst(struct meter_stream *stream, const struct wait *wait) {
  int64_t took_ns = (wait->idle_ns != 0 ? wait->idle_ns : wait->now_ns) - wait->began_ns;
  uint32_t burst = get(stream->burst);
  set(stream->burst, took_ns > RUN_AHEAD_NS ? burst / 2 : 2 * burst + 1);
  set(stream->ahead, 0);
}

/* While it waits, others are to know of it, and the limit may change. */
static void hold(struct wait *wait) {
  struct meter *meter = wait->meter;
  while (is_held(wait)) {
    int64_t open_in_ns = get(meter->gate.open_at_ns) - wait->now_ns;
    int64_t most_ns = outstanding_any(meter) ? WORK_SLEEP_NS : TENANTS_KNOWN_NS;
    meter->driver->sleep_ns(open_in_ns > 0 ? min(open_in_ns, most_ns) : WORK_SLEEP_NS);
    wait->held_ns += open_in_ns > 0 ? meter->driver->now_ns() - wait->now_ns : 0;
  }
  if (wait->held_ns == 0)
    return;
  settle(meter, wait->now_ns, wait->held_ns);
  if (meter->observer != NULL)
    meter->observer->waited(meter, wait->now_ns - wait->held_ns, wait->now_ns);
}

/* A sleep, and what it is late by, are to be a small part of what the work takes: before that there is none. */
void gate_finish(struct meter_stream *stream) {
  const struct meter_driver *driver = stream->meter->driver;
  struct wait wait = {.began_ns = driver->now_ns()};
  set(stream->launcher, claim_this_thread());
  signals_hold();
  while (get(stream->outstanding_ns) != 0 && meter_may_touch(stream)) {
    wait.now_ns = driver->now_ns();
    if (driver->is_idle(get(stream->handle)))
      outstanding_done(stream, wait.now_ns);
    else if (!has_patience(&wait, get(stream->since_ns)))
      break;
    else if (wait.now_ns - wait.began_ns > 10 * WORK_SLEEP_NS)
      driver->sleep_ns(WORK_SLEEP_NS);
  }
  signals_release();
}

/* What is captured waits when its graph is launched. */
HOT void gate_pass(struct meter_stream *stream, int64_t now_ns) {
  struct meter *meter = stream->meter;
  uint32_t ahead = get(stream->outstanding_ns) != 0 ? get(stream->ahead) : 0;
  struct wait wait = {.meter = meter, .drains = ahead > get(stream->burst), .began_ns = now_ns};
  set(stream->ahead, ahead + 1);
  if ((is_settled(meter, now_ns) && get(meter->gate.open_at_ns) <= now_ns && !wait.drains) ||
      meter->driver->is_capturing(get(stream->handle)))
    return;
  set(stream->launcher, claim_this_thread()); /* it may ask for the stream as well as launch on it */
  hold(&wait);
  if (wait.drains)
    fit_burst(stream, &wait);
  signals_release();
}
