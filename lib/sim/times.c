#include "times.h"

#include "spin_ends.h"
#include "timeline.h"

uint64_t time_known(uint64_t time_ns) {
  uint64_t after_ns;
  if (time_is_known(time_ns))
    return time_ns;
  if (time_is_piece(time_ns))
    return timeline_known(time_ns);
  uint64_t end_ns = spin_end(time_ns, &after_ns);
  if (end_ns == SPIN_GOES_ON)
    return time_ns;
  end_ns = time_known(end_ns);
  return time_is_known(end_ns) ? end_ns + after_ns : time_ns;
}

bool time_has_come(uint64_t time_ns) {
  return time_known(time_ns) <= clock_ns();
}

void time_wait(uint64_t time_ns) {
  uint64_t after_ns = 0;
  if (!time_is_known(time_ns) && !time_is_piece(time_ns) && spin_end(time_ns, &after_ns) != SPIN_GOES_ON)
    time_ns = time_known(spin_end(time_ns, &after_ns));
  if (time_is_known(time_ns))
    clock_wait_until(time_ns + after_ns);
  else if (time_is_piece(time_ns))
    timeline_wait(time_ns);
  else
    spin_wait();
}

uint64_t time_in_group(unsigned group, uint64_t time_ns) {
  uint64_t after_ns = 0;
  if (!time_is_known(time_ns) && !time_is_piece(time_ns)) {
    uint64_t end_ns = spin_end(time_ns, &after_ns);
    if (end_ns == SPIN_GOES_ON)
      return time_ns;
    time_ns = end_ns;
  }
  if (time_is_piece(time_ns) && piece_row(time_ns) != group)
    time_ns = timeline_known(time_ns);
  if (after_ns == 0 && (time_is_known(time_ns) || piece_row(time_ns) == group))
    return time_ns;
  return timeline_queue(group, (struct work){.after = time_ns, .after_ns = after_ns});
}

uint64_t time_later(uint64_t a_ns, uint64_t b_ns) {
  if (time_is_copy(a_ns) || time_is_copy(b_ns)) { /* has one of them come? */
    a_ns = time_known(a_ns);
    b_ns = time_known(b_ns);
  }
  if (time_is_known(a_ns) || time_is_known(b_ns) || a_ns == b_ns)
    return max_u64(a_ns, b_ns);
  return max_u64(time_with_all_before(a_ns), time_with_all_before(b_ns));
}
