#include "launch_rows.h"

#include "profile.h"

__thread struct launch_row launch_row;
static __thread struct profile_record nowhere; /* where there is no room: the launches count all the same */

void launch_row_record(int64_t start_ns) {
  struct profile_record *record = profile_records_next(1);
  launch_row.record = record != NULL ? record : &nowhere;
  profile_copy(launch_row.record, &(const struct profile_record){.start_ns = (uint64_t)start_ns,
                                                                 .value = profile_row(profile_place.kernel),
                                                                 .stream = profile_number_of(launch_row.stream),
                                                                 .api = launch_row.api,
                                                                 .device = profile_place.device,
                                                                 .kind_and_copy = PROFILE_ROW});
  if (record != NULL)
    profile_records_stored();
}

/* A stream that was destroyed meanwhile has had them in its last batch. */
void launch_row_tell(void) {
  struct launch_row row = launch_row;
  uint32_t launches = PROFILE_ROW_LAUNCHES - row.left;
  launch_row = (struct launch_row){0};
  profile_records_count_row(row.record, row.api, profile_place.kernel, launches, row.longest_ns);
  if (row.generation == __atomic_load_n(&streams_generation, __ATOMIC_ACQUIRE))
    meter_launched_more(row.metered, row.work, launches, row.last_ns);
}
