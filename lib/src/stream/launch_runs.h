/*
 * Runs of launches: the same kernel on the same stream by the same thread, one right after the other. Where nothing is
 * held back, and all is measured for a profile alone, a run has one record, and the meter and the totals are told of it
 * when it ends: a program that does little but launch is spared most of the cost of recording. Reading the clock,
 * and what comes with it, is most of what remains, so only one of LAUNCH_RUN_UNTIMED + 1 launches is timed, and stands
 * for those since the one before; the others are counted in the record, and nothing else.
 *
 * A run ends after PROFILE_RUN_LAUNCHES launches, with a longer gap, and with whatever else the thread asks of the
 * driver. Until then its record says that the totals do not have it yet: a reader of the file adds it, also when the
 * thread or the process has ended meanwhile.
 */
#ifndef VGPU_STREAM_LAUNCH_RUNS_H
#define VGPU_STREAM_LAUNCH_RUNS_H

#include "profile/records.h"
#include "stream/streams.h"

#define LAUNCH_RUN_GAP_NS 20000LL
#define LAUNCH_RUN_UNTIMED 7

/* Everything that a launch reads is in one cache line. */
extern __thread struct launch_run {
  _Alignas(64) CUfunction function; /* NULL: there is no run */
  uint64_t shape;                   /* of its grid */
  uint64_t call;                    /* by which function of the driver, and on which stream */
  uint64_t to_count;                /* launches until one is to be timed */
  struct profile_record *record;    /* NULL: nothing is in it yet */
  CUfunction before;                /* what was launched last; a run begins with the second one */
  int64_t last_ns;                  /* when the last one that was timed began */
  uint32_t launches;                /* up to that one */
  uint16_t api;
  uint64_t longest_ns;
  CUstream stream;
  uint64_t work;
  struct meter_stream *metered;
  uint32_t generation; /* of the streams */
} launch_run;

COLD void launch_run_tell(void);
COLD void launch_run_record(int64_t start_ns);

/* Before anything that may not come after launches which nobody has been told of. */
static inline void launch_run_end(void) {
  if (__builtin_expect(launch_run.record != NULL, 0))
    launch_run_tell();
  launch_run.function = NULL;
}

/* An address has nothing in its highest bits. */
static inline uint64_t launch_run_call(uint16_t api, CUstream stream) {
  return (uint64_t)api << 48 ^ (uintptr_t)stream;
}

/* A call that gives the stream's handle another meaning comes from this thread, and has ended the run. */
static inline bool launch_run_is_of(CUfunction function, uint64_t call, uint64_t shape) {
  return launch_run.function == function && launch_run.shape == shape && launch_run.call == call;
}

/* Counts a launch without timing it; false: it has to be timed. A launch that then fails is taken back. */
static inline bool launch_run_counts(void) {
  struct launch_run *run = &launch_run;
  if (run->to_count == 0)
    return false;
  run->to_count--;
  profile_set(&run->record->value, run->record->value + 1);
  return true;
}
static inline void launch_run_take_back(void) {
  struct launch_run *run = &launch_run;
  if (run->record == NULL)
    return;
  run->to_count++;
  profile_set(&run->record->value, run->record->value - 1);
}

/* Since the last one that was timed. */
static inline uint32_t launch_run_untimed(const struct launch_run *run) {
  return run->record != NULL ? LAUNCH_RUN_UNTIMED - (uint32_t)run->to_count : 0;
}

/* Has it room for the next ones, and come to one that is timed soon enough? */
static inline bool launch_run_goes_on(int64_t now_ns) {
  const struct launch_run *run = &launch_run;
  uint32_t came = 1 + launch_run_untimed(run);
  bool has_room = run->launches + came + LAUNCH_RUN_UNTIMED <= PROFILE_RUN_LAUNCHES;
  return has_room && now_ns - run->last_ns <= LAUNCH_RUN_GAP_NS * came;
}

/* Adds the timed launch, which succeeded, to the run. */
static inline void launch_run_add(int64_t start_ns, int64_t end_ns) {
  struct launch_run *run = &launch_run;
  uint64_t duration_ns = end_ns > start_ns ? (uint64_t)(end_ns - start_ns) : 0;
  uint32_t untimed = launch_run_untimed(run);
  if (__builtin_expect(run->record == NULL, 0))
    launch_run_record(start_ns);
  profile_records_grow(run->record, end_ns, duration_ns * (1 + untimed));
  run->launches += 1 + untimed;
  run->to_count = LAUNCH_RUN_UNTIMED;
  run->last_ns = start_ns;
  run->longest_ns = duration_ns > run->longest_ns ? duration_ns : run->longest_ns;
}

/* The meter and the totals have been told of a launch; it may be followed by a run of the same. */
static inline void launch_run_begin(uint16_t api, CUstream stream, CUfunction function, uint64_t shape, uint64_t work,
                                    int64_t now_ns) {
  struct meter_stream *metered = streams_last.found;
  if (launch_run.before != function)
    launch_run.before = function;
  else if (profile_place.joined && atomic_load_explicit(&metered->is_free, memory_order_relaxed))
    launch_run = (struct launch_run){.function = function,
                                     .shape = shape,
                                     .call = launch_run_call(api, stream),
                                     .before = function,
                                     .last_ns = now_ns,
                                     .api = api,
                                     .stream = stream,
                                     .work = work,
                                     .metered = metered,
                                     .generation = streams_last.generation};
}

#endif
