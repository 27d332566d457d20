/*
 * A limit changes while a process owes GPU time. Another process comes between any two of its steps, or it is killed
 * there: what is owed is converted once. The code is bucket.c itself: its atomic operations are replaced by ones that
 * let the other process in first.
 */
#include "abi.h"
#include "check.h"

#include <setjmp.h>
#include <stdbool.h>

static void step(void);

#define __atomic_load_n(address, order) (step(), *(address))
#define __atomic_store_n(address, value, order) (step(), *(address) = (value))
#define __atomic_add_fetch(address, value, order) (step(), *(address) += (value))
#define __atomic_compare_exchange_n(address, expected, value, weak, success, failure)                                  \
  (step(), *(address) == *(expected) ? (*(address) = (value), true) : (*(expected) = *(address), false))

#include "bucket.c"

#define MS 1000000LL
#define NOW_NS (1000000 * MS)

static struct vgpu_device_shared device;
static uint32_t after_percent;
static int steps_left; /* until the other process comes */
static bool dies;
static jmp_buf death;

static void look(void) {
  bucket_follow_limit(&device, NOW_NS, after_percent);
  (void)bucket_open_at(&device, NOW_NS, after_percent);
}

static void step(void) {
  if (steps_left-- != 0)
    return;
  look();
  if (dies)
    longjmp(death, 1);
}

static void check(uint32_t before_percent, uint32_t percent, int steps) {
  device = (struct vgpu_device_shared){0};
  steps_left = -1;
  bucket_follow_limit(&device, NOW_NS - 100 * MS, before_percent);
  for (int i = 0; i < 2; i++)
    bucket_pay(&device, NOW_NS - 300 * MS, NOW_NS, NOW_NS, before_percent);
  int64_t owed_ns = (bucket_open_at(&device, NOW_NS, before_percent) - NOW_NS) * before_percent / 100;
  CHECK(owed_ns > 10 * MS, "owes %lld", (long long)owed_ns);
  after_percent = percent;
  steps_left = steps;
  if (setjmp(death) == 0)
    look();
  steps_left = -1;
  int64_t left_ns = (bucket_open_at(&device, NOW_NS, percent) - NOW_NS) * percent / 100;
  CHECK(left_ns > owed_ns - 100 && left_ns < owed_ns + 100, "%u to %u %%, after %d steps: owed %lld, owes %lld",
        before_percent, percent, steps, (long long)owed_ns, (long long)left_ns);
}

int main(void) {
  for (int i = 0; i < 2 * 10; i++) {
    dies = i % 2;
    check(1, 80, i / 2);
    check(80, 1, i / 2);
    check(50, 30, i / 2);
  }
  return 0;
}
