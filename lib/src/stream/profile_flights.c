#include "stream/profile_flights.h"

#include "base/claim.h"
#include "base/clock.h"
#include "base/log.h"
#include "profile/overlaps.h"
#include "stream/profile.h"
#include "stream/profile_clocks.h"

#include <stdlib.h>

#define HARVEST_EVERY_NS 200000LL
#define HARVEST_NS 1000000LL /* for which a launch is held up at most, and a piece of work more for each stream */
#define LEFT_OPEN_NS 100000000LL
#define PAUSE_TRIES 10000 /* each takes some 70 us */

struct flight {
  struct flight *next;
  struct profile_stream *stream;
  void *start, *end;  /* markers; without both nothing is known but what its work usually takes */
  int64_t opened_ns;  /* before the one was recorded */
  int64_t closing_ns; /* before the other was, or when it was last seen pending */
  int64_t start_ns, end_ns;
  struct profile_group group;
};

static int32_t lists; /* a claim that guards the lists of streams, of what each has in flight, and of what is counted */
static struct profile_stream *all, *spare;
static uint32_t at_work[PROFILE_MAX_DEVICES + 1]; /* streams with groups, of each device; the last is none */

static int32_t harvester; /* a claim: the thread that harvests alone uses the next ones */
static int64_t harvested_ns;
static struct flight *done; /* by their ends */

static struct overlaps counted[PROFILE_MAX_DEVICES + 1];

static uint32_t place_of_device(uint8_t device) {
  return device < PROFILE_MAX_DEVICES ? device : PROFILE_MAX_DEVICES;
}

static uint32_t place_of(const struct profile_stream *stream) {
  return place_of_device(stream->device);
}

static int64_t count(uint32_t place, struct overlap time) {
  claim_take(&lists);
  int64_t own_ns = overlaps_add(&counted[place], time);
  claim_release(&lists);
  return own_ns;
}

void profile_flights_leave_out(uint8_t device, struct overlap time) {
  count(place_of_device(device), time);
}

static bool is_destroyed(const struct profile_stream *stream) {
  return __atomic_load_n(&stream->context, __ATOMIC_ACQUIRE) == NULL;
}

/* ---- streams ---------------------------------------------------------------------------------------------------- */

static struct profile_stream *first_stream(void) {
  return __atomic_load_n(&all, __ATOMIC_ACQUIRE);
}

static bool has_number(uint8_t device, uint32_t number) {
  for (const struct profile_stream *each = all; each != NULL; each = each->next)
    if (each->device == device && each->number == number)
      return true;
  return false;
}

static void harvest_at_exit(void) {
  profile_flights_harvest(FLIGHTS_ALL);
}

/* The driver has a handler of its own as soon as there is a device: this one comes later, and runs before it. */
static void watch_exit(void) {
  static bool watches;
  if (!__atomic_exchange_n(&watches, true, __ATOMIC_RELAXED))
    atexit(harvest_at_exit);
}

/* Takes a stream that has ended, at which its last thread may still look. */
static struct profile_stream *take_spare(void) {
  struct profile_stream *stream = spare;
  if (stream == NULL || !claim_try(&stream->claim))
    return calloc(1, sizeof *stream);
  spare = stream->next;
  stream->launcher = 0;
  stream->has_clock = false;
  stream->told_until_ns = 0;
  __atomic_store_n(&stream->has_strangers, false, __ATOMIC_RELAXED);
  __atomic_store_n(&stream->has_ended, false, __ATOMIC_RELAXED);
  claim_release(&stream->claim);
  return stream;
}

struct profile_stream *profile_flights_stream(CUstream handle, CUcontext context, uint32_t number) {
  uint8_t device = profile_device_of_current_context();
  watch_exit();
  claim_take(&lists);
  struct profile_stream *made = take_spare();
  if (made != NULL) {
    made->device = device;
    made->number = handle == CU_STREAM_LEGACY ? 0 : number;
    while (has_number(device, made->number))
      made->number++;
    __atomic_store_n(&made->handle, handle, __ATOMIC_RELAXED);
    __atomic_store_n(&made->context, context, __ATOMIC_RELEASE);
    made->next = all;
    __atomic_store_n(&all, made, __ATOMIC_RELEASE);
  }
  claim_release(&lists);
  return made;
}

/* Another may have got its handle meanwhile. */
void profile_flights_end_stream(struct profile_stream *stream, CUstream handle) {
  if (__atomic_compare_exchange_n(&stream->handle, &handle, NULL, false, __ATOMIC_RELAXED, __ATOMIC_RELAXED))
    __atomic_store_n(&stream->has_ended, true, __ATOMIC_RELEASE);
}

static void forget_ended(void) {
  claim_take(&lists);
  for (struct profile_stream **link = &all; *link != NULL;) {
    struct profile_stream *stream = *link;
    if (__atomic_load_n(&stream->has_ended, __ATOMIC_ACQUIRE) &&
        __atomic_load_n(&stream->groups, __ATOMIC_ACQUIRE) == 0 &&
        __atomic_load_n(&stream->claim, __ATOMIC_ACQUIRE) == 0) {
      __atomic_store_n(link, stream->next, __ATOMIC_RELEASE); /* others look at the first without the claim */
      stream->next = spare;
      spare = stream;
    } else
      link = &stream->next;
  }
  claim_release(&lists);
}

bool profile_flights_compete(const struct profile_stream *stream) {
  uint32_t own = __atomic_load_n(&stream->groups, __ATOMIC_RELAXED) > 0;
  return __atomic_load_n(&at_work[place_of(stream)], __ATOMIC_RELAXED) > own;
}

static void begin_group(struct profile_stream *stream) {
  if (__atomic_fetch_add(&stream->groups, 1, __ATOMIC_RELAXED) == 0)
    __atomic_fetch_add(&at_work[place_of(stream)], 1, __ATOMIC_RELAXED);
}

static void end_group(struct profile_stream *stream) {
  if (__atomic_fetch_sub(&stream->groups, 1, __ATOMIC_RELEASE) == 1)
    __atomic_fetch_sub(&at_work[place_of(stream)], 1, __ATOMIC_RELAXED);
}

/* ---- groups ----------------------------------------------------------------------------------------------------- */

/* A capture has begun unseen, by a function that is not recorded: later launches ask. */
static bool is_capturing(const struct profile_stream *stream) {
  bool captures = meters_driver.is_capturing(stream->handle);
  if (__builtin_expect(captures, 0))
    profile_streams_capture();
  return captures;
}

static void *mark(const struct profile_stream *stream) {
  static int said;
  void *marker = profile_markers_record(stream->handle);
  if (marker == NULL)
    log_once(&said, LOG_WARNING, "GPU work on a stream cannot be measured; the profile lacks its time");
  return marker;
}

static void append(struct flight *flight) {
  struct profile_stream *stream = flight->stream;
  claim_take(&lists);
  if (stream->last != NULL)
    stream->last->next = flight;
  else
    stream->first = flight;
  stream->last = flight;
  claim_release(&lists);
}

static struct flight *first_of(const struct profile_stream *stream) {
  claim_take(&lists);
  struct flight *first = stream->first;
  claim_release(&lists);
  return first;
}

static uint32_t count_of(const struct profile_stream *stream) {
  uint32_t count = 0;
  claim_take(&lists);
  for (const struct flight *flight = stream->first; flight != NULL; flight = flight->next)
    count++;
  claim_release(&lists);
  return count;
}

static void take_first(struct profile_stream *stream) {
  claim_take(&lists);
  stream->first = stream->first->next;
  if (stream->first == NULL)
    stream->last = NULL;
  claim_release(&lists);
}

void profile_flights_close(struct profile_stream *stream, bool marks) {
  struct flight *flight = stream->open.launches > 0 ? malloc(sizeof *flight) : NULL;
  __atomic_store_n(&stream->is_open, false, __ATOMIC_RELAXED);
  if (flight == NULL) {
    profile_markers_recycle(stream->start);
    end_group(stream);
    return;
  }
  *flight = (struct flight){.stream = stream,
                            .start = stream->start,
                            .opened_ns = stream->opened_ns,
                            .closing_ns = quick_clock_ns(),
                            .group = stream->open};
  flight->end = marks && stream->start != NULL && !is_capturing(stream) ? mark(stream) : NULL;
  flight->group.closed_ns = quick_clock_ns();
  flight->group.has_strangers = __atomic_exchange_n(&stream->has_strangers, false, __ATOMIC_RELAXED);
  append(flight);
}

/* ---- the beginning of a group ------------------------------------------------------------------------------------ */

bool profile_flights_open(struct profile_stream *stream) {
  if (is_capturing(stream))
    return false;
  if (__builtin_expect(!stream->has_clock, 0) && claim_try(&harvester)) {
    profile_clocks_place(stream->context, stream->handle);
    claim_release(&harvester);
  }
  stream->has_clock = true;
  stream->opened_ns = quick_clock_ns();
  stream->start = mark(stream);
  stream->open = (struct profile_group){0};
  __atomic_store_n(&stream->is_open, true, __ATOMIC_RELAXED);
  begin_group(stream);
  return true;
}

/* ---- what is done ----------------------------------------------------------------------------------------------- */

/* Both markers are done: when was that? */
static bool place(struct flight *flight) {
  int64_t now_ns = quick_clock_ns(), took_ns;
  struct profile_clock *clock = profile_clocks_of(__atomic_load_n(&flight->stream->context, __ATOMIC_RELAXED));
  if (clock == NULL || !profile_markers_elapsed_ns(flight->start, flight->end, &took_ns) ||
      !profile_clocks_place_marker(clock, &flight->start, flight->opened_ns, now_ns, &flight->start_ns))
    return false;
  int64_t earliest_ns = min(max(flight->closing_ns, flight->start_ns + took_ns), now_ns);
  if (!profile_clocks_place_marker(clock, &flight->end, earliest_ns, now_ns, &flight->end_ns))
    return false;
  flight->start_ns = flight->end_ns - took_ns;
  return true;
}

/* A stream does one thing after the other, however the clocks were placed meanwhile. */
static void settle(struct flight *flight, struct profile_measure measure) {
  struct profile_stream *stream = flight->stream;
  measure.from_ns = min(max(measure.from_ns, stream->told_until_ns), measure.to_ns);
  measure.busy_ns = min(measure.busy_ns, measure.to_ns - measure.from_ns);
  stream->told_until_ns = max(stream->told_until_ns, measure.to_ns);
  int64_t own_ns = count(place_of(stream), (struct overlap){measure.to_ns - measure.busy_ns, measure.to_ns});
  profile_group_settle(&flight->group, &measure, own_ns);
  profile_span(stream->device, stream->number, &measure, own_ns, flight->group.launches);
  free(flight);
  end_group(stream);
}

/* No marker tells: it took what it usually takes, and no longer than until now. */
static struct profile_measure guess(const struct profile_group *group) {
  int64_t busy_ns = min(group->usual_ns, max(quick_clock_ns() - group->began_ns, 0));
  return (struct profile_measure){group->began_ns, group->began_ns + busy_ns, busy_ns, false, false};
}

/* Below one that is there already, NULL for none: thousands of a stream come in the order of their ends. */
static void insert(struct flight *flight, struct flight *before) {
  bool follows = before != NULL && before->end_ns <= flight->end_ns;
  struct flight **link = follows ? &before->next : &done;
  while (*link != NULL && (*link)->end_ns <= flight->end_ns)
    link = &(*link)->next;
  flight->next = *link;
  *link = flight;
}

/* Settles the work of a stream that ended with its context, with the process or after an error: it ended now at the
 * latest. How long unknown work took is guessed. */
static void settle_lost(struct profile_stream *stream) {
  int64_t now_ns = quick_clock_ns(), from_ns = 0;
  struct flight *flight;
  for (uint32_t left = count_of(stream); left > 0 && (flight = first_of(stream)) != NULL; left--) {
    take_first(stream);
    profile_markers_recycle(flight->start);
    profile_markers_recycle(flight->end);
    from_ns = max(max(from_ns, flight->group.began_ns), stream->told_until_ns);
    int64_t room_ns = max(now_ns - from_ns, 0);
    int64_t busy_ns = flight->group.is_unknown ? room_ns / left : min(flight->group.usual_ns, room_ns);
    settle(flight, (struct profile_measure){from_ns, from_ns + busy_ns, busy_ns, false, false});
    from_ns += busy_ns;
  }
}

/* Takes the first that a stream has in flight, whose markers are done or missing. */
static bool take_done(struct flight *flight, struct flight *before) {
  take_first(flight->stream);
  if (flight->end != NULL && place(flight)) {
    insert(flight, before);
    return true;
  }
  profile_markers_recycle(flight->start);
  profile_markers_recycle(flight->end);
  settle(flight, guess(&flight->group));
  return false;
}

static enum marker_state state_of(const struct flight *flight) {
  if (is_destroyed(flight->stream))
    return MARKER_LOST;
  return flight->end != NULL ? profile_markers_query(flight->end) : MARKER_DONE;
}

/* Until when is all known that has ended on the stream? Other threads may launch faster than this one collects. */
static int64_t collect(struct profile_stream *stream, int64_t deadline_ns) {
  struct flight *flight, *before = NULL;
  while ((flight = first_of(stream)) != NULL) {
    int64_t asked_ns = quick_clock_ns();
    enum marker_state state = state_of(flight);
    if (state == MARKER_PENDING)
      flight->closing_ns = asked_ns;
    if (state == MARKER_LOST)
      settle_lost(stream);
    if (state != MARKER_DONE)
      break;
    if (take_done(flight, before))
      before = flight;
    if (asked_ns >= deadline_ns)
      return before != NULL ? before->end_ns : 0;
  }
  return INT64_MAX;
}

/* By their ends: a stream that was asked earlier may have work that has ended since. */
static void settle_done(int64_t until_ns) {
  struct flight *flight;
  while ((flight = done) != NULL && flight->end_ns <= until_ns) {
    done = flight->next;
    settle(flight, profile_group_measure(&flight->group, flight->start_ns, flight->end_ns));
  }
}

/* Their threads may have ended, or not come back for long: meanwhile other streams seem not to be alone on the GPU. */
static void close_older(int64_t than_ns) {
  for (struct profile_stream *stream = first_stream(); stream != NULL; stream = stream->next)
    if (__atomic_load_n(&stream->is_open, __ATOMIC_RELAXED) && claim_try(&stream->claim)) {
      if (stream->is_open && stream->open.ready_ns <= than_ns)
        profile_flights_close(stream, false);
      claim_release(&stream->claim);
    }
}

/* A process that is suspended has nothing on the GPU, and its calls would wait. */
static void harvest(enum flights_wanted wanted) {
  bool asks = !process_is_suspended();
  int64_t now_ns = quick_clock_ns(), known_ns = now_ns;
  __atomic_store_n(&harvested_ns, now_ns, __ATOMIC_RELAXED);
  close_older(wanted == FLIGHTS_ALL ? INT64_MAX : now_ns - LEFT_OPEN_NS);
  for (struct profile_stream *stream = first_stream(); stream != NULL; stream = stream->next)
    if (asks)
      known_ns = min(known_ns, collect(stream, wanted == FLIGHTS_ALL ? INT64_MAX : now_ns + HARVEST_NS));
  settle_done(wanted == FLIGHTS_ALL ? INT64_MAX : known_ns);
  for (struct profile_stream *stream = first_stream(); stream != NULL && wanted == FLIGHTS_ALL; stream = stream->next)
    settle_lost(stream);
  forget_ended();
}

static void harvest_in_turn(enum flights_wanted wanted) {
  if (!claim_try(&harvester) && !claim_recover(&harvester))
    return;
  harvest(wanted);
  claim_release(&harvester);
}

void profile_flights_harvest(enum flights_wanted wanted) {
  if (wanted == FLIGHTS_ALL && !process_is_suspended())
    profile_streams_wait();
  if (wanted == FLIGHTS_ALL || first_stream() != NULL)
    harvest_in_turn(wanted);
}

void profile_flights_harvest_now_and_then(void) {
  if (quick_clock_ns() - __atomic_load_n(&harvested_ns, __ATOMIC_RELAXED) >= HARVEST_EVERY_NS)
    harvest_in_turn(FLIGHTS_DONE);
}

/* ---- contexts ---------------------------------------------------------------------------------------------------- */

/* Another thread that harvests may hang in the driver. */
bool profile_flights_pause(void) {
  bool paused;
  for (int tries = 0; !(paused = claim_try(&harvester) || claim_recover(&harvester)) && tries < PAUSE_TRIES; tries++)
    signals_sleep_ns(20000);
  signals_release();
  return paused;
}

static void forget_context(CUcontext destroyed) {
  profile_clocks_forget_context(destroyed);
  harvest(FLIGHTS_DONE);
  profile_markers_forget_context(destroyed);
}

static struct profile_stream *first_of_context(CUcontext context) {
  claim_take(&lists);
  struct profile_stream *stream = all;
  while (stream != NULL && __atomic_load_n(&stream->context, __ATOMIC_RELAXED) != context)
    stream = stream->next;
  claim_release(&lists);
  return stream;
}

/* Another thread may forget those that have ended meanwhile, so the list is looked through anew after each. */
static void end_streams_of(CUcontext destroyed) {
  struct profile_stream *stream;
  while ((stream = first_of_context(destroyed)) != NULL) {
    if (claim_try(&stream->claim)) {
      if (stream->is_open)
        profile_flights_close(stream, false);
      claim_release(&stream->claim);
    }
    __atomic_store_n(&stream->context, NULL, __ATOMIC_RELEASE);
    __atomic_store_n(&stream->handle, NULL, __ATOMIC_RELAXED);
    __atomic_store_n(&stream->has_ended, true, __ATOMIC_RELEASE);
  }
}

void profile_flights_resume(bool paused, CUcontext destroyed) {
  if (destroyed != NULL)
    end_streams_of(destroyed);
  if (destroyed != NULL && paused)
    forget_context(destroyed);
  if (paused)
    claim_release(&harvester);
}

static void profile_flights_forget(void) {
  lists = harvester = 0;
  all = spare = NULL;
  done = NULL;
  harvested_ns = 0;
  memset(at_work, 0, sizeof at_work);
  memset(counted, 0, sizeof counted);
}
PROCESS_IN_CHILD(profile_flights_forget);
