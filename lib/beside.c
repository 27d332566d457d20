/*
 * A process whose work does not end holds no turn, and its GPU divides the time of whose turn it is. It cannot be
 * believed what it says of itself; but the GPU tells: with nothing of ours before it, a marker is done in a fraction of
 * a millisecond, but where others work only when their slice of the GPU's own time-slicing has ended, which is two
 * milliseconds. One that is late may have other reasons: it is believed when the one before was late too.
 */
#include "beside.h"

#include "meter_parts.h"

#define LATE_NS 500000LL    /* to switch between tenants takes less than half of that */
#define AGAIN_NS 50000000LL /* after a marker that was in time: to look costs its ten microseconds */
#define BELIEVED_NS 1000000000LL

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
  int64_t now_ns = meter->driver->now_ns(), look_at_ns = get(meter->look_beside_at_ns);
  if (now_ns < look_at_ns || !meter_is_at_rest(stream) ||
      !replace(meter->look_beside_at_ns, look_at_ns, now_ns + AGAIN_NS))
    return;
  bool late = is_late(stream);
  if (late && get(meter->was_late))
    set(meter->mixed_until_ns, now_ns + BELIEVED_NS);
  if (late) /* is the next one, too? */
    set(meter->look_beside_at_ns, now_ns);
  set(meter->was_late, late);
}
