/*
 * Rows of launches: the same kernel on the same stream by the same thread, one right after the other. Where nothing is
 * held back, and all is measured for a profile alone, a row has one record, and the meter and the totals are told of it
 * when it ends: a program that does little but launch is spared the most of what it costs to record it.
 *
 * A row ends after PROFILE_ROW_LAUNCHES launches, with a longer gap, and with whatever else the thread asks of the
 * driver. Until then its record says that the totals do not have it yet: whoever reads the file adds it, also when the
 * thread or the process has ended meanwhile.
 */
#ifndef VGPU_LAUNCH_ROWS_H
#define VGPU_LAUNCH_ROWS_H

#include "profile_records.h"
#include "streams.h"

#define LAUNCH_ROW_GAP_NS 20000LL

/* What each launch asks for is in one cache line. */
extern __thread struct launch_row {
  _Alignas(64) CUfunction function; /* NULL: there is no row */
  uint64_t work;
  CUstream stream;
  int64_t last_ns;               /* when the last launch began */
  struct profile_record *record; /* NULL: nothing is in it yet */
  uint64_t longest_ns;
  uint32_t left; /* launches that it still takes */
  uint16_t api;
  struct meter_stream *metered;
  uint32_t generation; /* of the streams */
} launch_row;

SELDOM void launch_row_tell(void);
SELDOM void launch_row_record(int64_t start_ns);

/* Before anything that may not come after launches which nobody has been told of. */
static inline void launch_row_end(void) {
  if (__builtin_expect(launch_row.record != NULL, 0))
    launch_row_tell();
  launch_row.function = NULL;
}

/* What would make the stream's handle mean another one is a call of the thread, and has ended the row. */
static inline bool launch_row_takes(uint16_t api, CUstream stream, CUfunction function, uint64_t work, int64_t now_ns) {
  const struct launch_row *row = &launch_row;
  return row->function == function && row->work == work && row->stream == stream && row->api == api && row->left > 0 &&
         now_ns - row->last_ns <= LAUNCH_ROW_GAP_NS;
}

/* A launch that it takes has gone well. */
static inline void launch_row_add(int64_t start_ns, int64_t end_ns) {
  struct launch_row *row = &launch_row;
  uint64_t duration_ns = end_ns > start_ns ? (uint64_t)(end_ns - start_ns) : 0;
  if (__builtin_expect(row->record == NULL, 0))
    launch_row_record(start_ns);
  row->left--;
  row->last_ns = start_ns;
  row->longest_ns = duration_ns > row->longest_ns ? duration_ns : row->longest_ns;
  profile_records_grow(row->record, end_ns, duration_ns);
}

/* The meter and the totals have been told of a launch; it may be followed by a row of the same. */
static inline void launch_row_begin(uint16_t api, CUstream stream, CUfunction function, uint64_t work, int64_t now_ns) {
  struct meter_stream *metered = streams_last.found;
  if (profile_place.joined && __atomic_load_n(&metered->is_free, __ATOMIC_RELAXED))
    launch_row = (struct launch_row){.function = function,
                                     .work = work,
                                     .stream = stream,
                                     .last_ns = now_ns,
                                     .left = PROFILE_ROW_LAUNCHES,
                                     .api = api,
                                     .metered = metered,
                                     .generation = streams_last.generation};
}

#endif
