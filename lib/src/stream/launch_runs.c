#include "stream/launch_runs.h"

#include "base/compiler.h"
#include "stream/profile.h"

__thread struct launch_run launch_run;
static __thread struct profile_record nowhere; /* where there is no room: the launches count all the same */

void launch_run_record(int64_t start_ns) {
  struct profile_record *record = profile_records_next(1);
  launch_run.record = record != NULL ? record : &nowhere;
  profile_copy(launch_run.record, &(const struct profile_record){.start_ns = (uint64_t)start_ns,
                                                                 .value = profile_run_value(profile_place.kernel),
                                                                 .stream = profile_number_of(launch_run.stream),
                                                                 .api = launch_run.api,
                                                                 .device = profile_place.device,
                                                                 .kind_and_copy = PROFILE_RUN});
  if (record != NULL)
    profile_records_stored();
}

/* The last ones that were not timed are taken to have come as evenly as those before, and to have taken as long. */
static void add_untimed(struct launch_run *run, uint32_t untimed, int64_t now_ns) {
  struct profile_record *record = run->record;
  uint64_t lasts_ns = record->value >> 32, more_ns = lasts_ns / run->launches * untimed;
  uint64_t passed_ns = (uint64_t)now_ns - record->start_ns, most_ns = subtract_saturating(passed_ns, lasts_ns);
  if (more_ns > most_ns)
    more_ns = most_ns;
  run->last_ns += (int64_t)more_ns;
  profile_set(&record->value, (uint32_t)record->value | (lasts_ns + more_ns) << 32);
  profile_set(&record->duration_ns, record->duration_ns / run->launches * (run->launches + untimed));
}

/* A stream that was destroyed meanwhile has had them in its last batch. */
void launch_run_tell(void) {
  struct launch_run run = launch_run;
  uint32_t untimed = launch_run_untimed(&run), launches = run.launches + untimed;
  launch_run = (struct launch_run){.before = run.function};
  int64_t now_ns = untimed > 0 ? quick_clock_ns() : run.last_ns;
  if (untimed > 0)
    add_untimed(&run, untimed, now_ns);
  profile_records_count_run(run.record, run.api, profile_place.kernel, launches, run.longest_ns);
  if (run.generation == __atomic_load_n(&streams_generation, __ATOMIC_ACQUIRE))
    meter_launched_more(run.metered, run.work, launches, run.last_ns, now_ns);
}
