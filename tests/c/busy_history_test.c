/* The GPU time of each second, as a reader finds it. */
#include "cases.h"
#include "check.h"
#include "shared/history.h"

#include <string.h>

#define US 1000LL
#define MS 1000000LL
#define S 1000000000LL

static struct vgpu_device_shared device;

static int64_t busy_us(int64_t second) {
  uint64_t entry = device.seconds[second % VGPU_SECONDS];
  return entry >> 32 == (uint64_t)second ? (int64_t)(uint32_t)entry : 0;
}

static void check_parts(void) {
  busy_history_add(&device, 100 * S + 900 * MS, 102 * S + 250 * MS);
  CHECK(busy_us(99) == 0, "%lld", (long long)busy_us(99));
  CHECK(busy_us(100) == 100000, "%lld", (long long)busy_us(100));
  CHECK(busy_us(101) == 1000000, "%lld", (long long)busy_us(101));
  CHECK(busy_us(102) == 250000, "%lld", (long long)busy_us(102));
  busy_history_add(&device, 102 * S + 250 * MS, 102 * S + 260 * MS);
  CHECK(busy_us(102) == 260000, "%lld", (long long)busy_us(102));
}

/* Kernels of 4.4 us, one after the other: no part of a microsecond is lost. */
static void check_short_intervals(void) {
  for (int64_t at_ns = 200 * S; at_ns < 201 * S; at_ns += 4400)
    busy_history_add(&device, at_ns, at_ns + 4400);
  CHECK(busy_us(200) == 1000000, "%lld", (long long)busy_us(200));
  for (int64_t at_ns = 202 * S; at_ns < 203 * S; at_ns += 10007) /* and with rests in between */
    busy_history_add(&device, at_ns, at_ns + 4400);
  CHECK(busy_us(202) > 438000 && busy_us(202) < 441500, "%lld", (long long)busy_us(202));
}

static void check_old_entries_are_replaced(void) {
  busy_history_add(&device, 300 * S, 300 * S + MS);
  busy_history_add(&device, (300 + VGPU_SECONDS) * S, (300 + VGPU_SECONDS) * S + 2 * MS);
  CHECK(busy_us(300) == 0 && busy_us(300 + VGPU_SECONDS) == 2000, "%lld", (long long)busy_us(300 + VGPU_SECONDS));
}

static void check_damage(void) {
  memset(device.seconds, 0xff, sizeof device.seconds);
  busy_history_add(&device, 400 * S, 400 * S + 5 * MS);
  CHECK(busy_us(400) == 5000, "%lld", (long long)busy_us(400));
  device.seconds[401 % VGPU_SECONDS] = 401ULL << 32 | 0xffffffff;
  busy_history_add(&device, 401 * S, 401 * S + 5 * MS);
  CHECK(busy_us(401) == 1000000, "never more than all of it: %lld", (long long)busy_us(401));
  busy_history_add(&device, -5 * S, 3 * S);
  busy_history_add(&device, INT64_MIN / 2, INT64_MIN / 2 + S);
  busy_history_add(&device, 402 * S, 401 * S);
  CHECK(busy_us(402) == 0, "%lld", (long long)busy_us(402));
}

/* Longer than the ring: the last seconds are right. */
static void check_long_work(void) {
  busy_history_add(&device, 500 * S, 900 * S + 500 * MS);
  for (int64_t second = 840; second < 900; second++)
    CHECK(busy_us(second) == 1000000, "second %lld: %lld", (long long)second, (long long)busy_us(second));
  CHECK(busy_us(900) == 500000, "%lld", (long long)busy_us(900));
}

int main(int count, char **names) {
  cases_begin(count, names);
  CASE("parts") check_parts();
  CASE("short intervals") check_short_intervals();
  CASE("old entries are replaced") check_old_entries_are_replaced();
  CASE("damage") check_damage();
  CASE("long work") check_long_work();
  return cases_end();
}
