/*
 * A tenant that has launched and is silent since may wait for work that never ends, or do something else entirely.
 * Which of the two, the GPU tells: with nothing of ours before it, a marker is done in ten microseconds, but where
 * others work only when their slice of the GPU's own time-slicing has ended, which is two milliseconds. One that is
 * late may have other reasons: it is believed when the one before was late too.
 */
#include "beside.h"

#include "meter_parts.h"

#define LATE_NS 500000LL         /* to switch between tenants takes less than half of that */
#define AGAIN_NS 50000000LL      /* after a marker that was in time: to look costs its ten microseconds */
#define BELIEVED_NS 1000000000LL /* since who believes it need not wait, and has no occasion to look */

static int64_t mixed_until_ns(const struct meter *meter) {
  return __atomic_load_n(&meter->mixed_until_ns, __ATOMIC_RELAXED);
}

uint32_t beside_count(struct meter *meter) {
  uint32_t stuck = turns_count_stuck(&meter->turns);
  if (stuck > 0 || mixed_until_ns(meter) == 0 || mixed_until_ns(meter) <= meter->driver->now_ns())
    return stuck;
  uint32_t silent = turns_count_silent(&meter->turns);
  return silent > 0 ? silent : 1;
}

static bool is_at_rest(struct meter_stream *stream) {
  return __atomic_load_n(&stream->claim, __ATOMIC_ACQUIRE) == 0 && !meter_is_open(stream);
}

/* With the claim on that stream, whose batch is not open yet. */
static bool others_of_ours_rest(const struct meter_stream *own) {
  const struct meter *meter = own->meter;
  uint32_t count = __atomic_load_n(&meter->stream_count, __ATOMIC_ACQUIRE);
  for (uint32_t i = 0; i < count; i++)
    if (meter->streams[i] != own && !is_at_rest(meter->streams[i]))
      return false;
  return true;
}

/* A tenant that says itself that it is stuck is known to be there. */
static bool may_be_there(struct meter *meter) {
  return turns_count_stuck(&meter->turns) == 0 && turns_have_quiet_tenant(&meter->turns);
}

/* By one thread at a time. */
static bool is_due(struct meter_stream *stream, int64_t now_ns) {
  struct meter *meter = stream->meter;
  int64_t look_at_ns = __atomic_load_n(&meter->look_beside_at_ns, __ATOMIC_RELAXED);
  if (now_ns < look_at_ns || now_ns < mixed_until_ns(meter) ||
      __atomic_load_n(&meter->in_flight_batches, __ATOMIC_RELAXED) > 0 || !may_be_there(meter))
    return false;
  return others_of_ours_rest(stream) && meter->driver->is_idle(stream->handle) && /* of copies, too */
         __atomic_compare_exchange_n(&meter->look_beside_at_ns, &look_at_ns, now_ns + AGAIN_NS, false, __ATOMIC_RELAXED,
                                     __ATOMIC_RELAXED);
}

/* The last question is asked after the time: if we were held up, the GPU was not. */
static bool is_late(struct meter_stream *stream) {
  const struct meter_driver *driver = stream->meter->driver;
  void *marker = driver->record(stream->handle);
  if (marker == NULL)
    return false;
  int64_t began_ns = driver->now_ns(), now_ns;
  bool pending;
  do {
    now_ns = driver->now_ns();
    pending = driver->query(marker) == METER_PENDING;
  } while (pending && now_ns - began_ns < LATE_NS);
  driver->recycle(marker);
  return pending;
}

void beside_look(struct meter_stream *stream) {
  struct meter *meter = stream->meter;
  int64_t now_ns = meter->driver->now_ns();
  if (!meter->takes_turns || !is_due(stream, now_ns))
    return;
  bool late = is_late(stream), was_mixed = now_ns - BELIEVED_NS < mixed_until_ns(meter);
  bool again = __atomic_exchange_n(&meter->was_late, late, __ATOMIC_RELAXED);
  if (late && (again || was_mixed))
    __atomic_store_n(&meter->mixed_until_ns, now_ns + BELIEVED_NS, __ATOMIC_RELAXED);
  if (late) /* is the next one, too? */
    __atomic_store_n(&meter->look_beside_at_ns, now_ns, __ATOMIC_RELAXED);
}
