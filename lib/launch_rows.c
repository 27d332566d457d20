#include "launch_rows.h"

#include "profile.h"

__thread struct launch_row launch_row;

/* Without one, when there is no room, the launches count all the same. */
void launch_row_record(int64_t start_ns) {
  struct profile_record *record = launch_row.record = profile_records_next(1);
  if (record == NULL)
    return;
  profile_copy(record, &(const struct profile_record){.start_ns = (uint64_t)start_ns,
                                                      .value = profile_row(0, profile_place.kernel, 0),
                                                      .stream = profile_number_of(streams_last.stream),
                                                      .api = launch_row.api,
                                                      .device = profile_place.device,
                                                      .kind_and_copy = PROFILE_ROW});
  profile_records_stored();
}

/* A stream that was destroyed meanwhile has had them in its last batch. */
void launch_row_tell(void) {
  struct launch_row row = launch_row;
  launch_row = (struct launch_row){0};
  profile_records_count_row(row.record, row.api, profile_place.kernel, row.count, row.duration_ns, row.longest_ns);
  if (row.generation == __atomic_load_n(&streams_generation, __ATOMIC_ACQUIRE))
    meter_launched_more(row.metered, row.work, row.count, row.last_ns);
}
