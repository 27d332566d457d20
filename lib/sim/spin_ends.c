#include "spin_ends.h"

#define NAME (1ULL << 63)
#define OFFSET_BITS 44
#define NUMBERS (1ULL << (63 - OFFSET_BITS)) /* then they begin anew: the older ones have ended long ago */
#define POLL_INTERVAL_NS (50 * NS_PER_US)

static struct {
  uint64_t number, end_ns;
} ends[SPIN_ENDS];

uint64_t spin_name(uint64_t number) {
  return NAME | (number % NUMBERS) << OFFSET_BITS;
}

bool time_is_spin(uint64_t time_ns) {
  return time_ns & NAME;
}

void spin_set_end(uint64_t number, uint64_t end_ns) {
  ends[number % SPIN_ENDS].number = number;
  ends[number % SPIN_ENDS].end_ns = end_ns;
}

/* So many were launched since then that it has ended long ago. */
uint64_t spin_end(uint64_t time_ns, uint64_t *after_ns) {
  uint64_t number = (time_ns ^ NAME) >> OFFSET_BITS;
  *after_ns = time_ns & ((1ULL << OFFSET_BITS) - 1);
  return ends[number % SPIN_ENDS].number % NUMBERS == number ? ends[number % SPIN_ENDS].end_ns : 0;
}

void spin_wait(void) {
  clock_sleep_until(clock_ns() + POLL_INTERVAL_NS);
}
