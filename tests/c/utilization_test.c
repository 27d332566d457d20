#include "cases.h"
#include "check.h"
#include "shared/history.h"

#include <string.h>

#define S 1000000000LL

static struct vgpu_device_shared device;

static void note(int64_t second, uint32_t us) {
  device.seconds[second % VGPU_SECONDS] = (uint64_t)second << 32 | us;
}

static unsigned measured(int64_t now_ns, uint32_t limit) {
  return utilization_measured(&device, now_ns, limit);
}

static void check_of_limit(void) {
  CHECK(utilization_of_limit(50, 100) == 50 && utilization_of_limit(0, 30) == 0, "of the whole");
  CHECK(utilization_of_limit(25, 50) == 50 && utilization_of_limit(10, 30) == 33, "of a half, of a third");
  CHECK(utilization_of_limit(50, 50) == 100 && utilization_of_limit(99, 50) == 100, "never more than all");
  CHECK(utilization_of_limit(5, 0) == 100 && utilization_of_limit(0, 0) == 0, "no division by zero");
}

static void check_the_last_second(void) {
  memset(&device, 0, sizeof device);
  CHECK(measured(1000 * S, 50) == 0, "idle");
  note(999, 500000);
  CHECK(measured(1000 * S, 50) == 100, "a full share: %u", measured(1000 * S, 50));
  CHECK(measured(1000 * S, 100) == 50, "of the whole: %u", measured(1000 * S, 100));
  CHECK(measured(1000 * S + S / 2, 50) == 50, "half of it is over: %u", measured(1000 * S + S / 2, 50));
  note(1000, 250000);
  CHECK(measured(1000 * S + S / 2, 50) == 100, "and goes on: %u", measured(1000 * S + S / 2, 50));
  CHECK(measured(1002 * S, 50) == 0, "long ago: %u", measured(1002 * S, 50));
  CHECK(measured((1000 + VGPU_SECONDS) * S, 50) == 0, "the ring has come round");
}

static void check_damage(void) {
  memset(&device, 0xff, sizeof device);
  CHECK(measured(1000 * S, 50) == 0, "another second's");
  note(999, UINT32_MAX);
  CHECK(measured(1000 * S, 100) == 100 && measured(1000 * S, 1) == 100 && measured(1000 * S, 0) == 100, "cut");
  CHECK(measured(0, 50) == 0 && measured(S - 1, 50) == 0, "the first second");
}

int main(int count, char **names) {
  cases_begin(count, names);
  CASE("of limit") check_of_limit();
  CASE("the last second") check_the_last_second();
  CASE("damage") check_damage();
  return cases_end();
}
