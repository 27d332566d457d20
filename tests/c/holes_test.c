/* Processes of a container charge their work in any order, and pay for the union of it. */
#include "bucket.h"
#include "check.h"
#include "holes.h"

#include <pthread.h>
#include <stdbool.h>
#include <string.h>

#define US 1000LL
#define MS 1000000LL

#define WORKERS 4
#define LENGTH_US 2000000

static struct vgpu_device_shared device;
static int64_t began_ns;

/* In microseconds, at most. */
struct habits {
  int64_t rest, work, late;
};

struct worker {
  unsigned random_state;
  int64_t start, end, charges_at;
};

static int64_t random_below(struct worker *worker, int64_t bound) {
  worker->random_state = worker->random_state * 1103515245 + 12345;
  return (worker->random_state >> 8) % bound;
}

static void go_on(struct worker *worker, const struct habits *habits) {
  worker->start = worker->end + random_below(worker, habits->rest);
  worker->end = worker->start + 1 + random_below(worker, habits->work);
  int64_t back_at = worker->end + random_below(worker, habits->late);
  worker->charges_at = back_at > worker->charges_at ? back_at : worker->charges_at;
}

static struct worker *next_to_charge(struct worker *workers) {
  struct worker *next = workers;
  for (int i = 1; i < WORKERS; i++)
    if (workers[i].charges_at < next->charges_at)
      next = &workers[i];
  return next;
}

/* What all are charged for, in percent of the time in which any of them worked. */
static double charged_percent(const struct habits *habits) {
  static bool worked[LENGTH_US];
  struct worker workers[WORKERS] = {0}, *next;
  int64_t charged_ns = 0, worked_ns = 0;
  memset(worked, 0, sizeof worked);
  device = (struct vgpu_device_shared){0};
  for (int i = 0; i < WORKERS; i++) {
    workers[i].random_state = (unsigned)i;
    go_on(&workers[i], habits);
  }
  while ((next = next_to_charge(workers))->end < LENGTH_US) {
    memset(worked + next->start, true, (size_t)(next->end - next->start));
    charged_ns += bucket_charge(&device, began_ns + next->start * US, began_ns + next->end * US,
                                began_ns + next->charges_at * US, 50);
    go_on(next, habits);
  }
  for (int i = 0; i < LENGTH_US; i++)
    worked_ns += worked[i] * US;
  CHECK(device.busy_ns == (uint64_t)charged_ns, "busy %lld", (long long)device.busy_ns);
  return 100.0 * (double)charged_ns / (double)worked_ns;
}

/* The union of what they have done, whoever comes first. */
static void check_late_charges(void) {
  const struct {
    struct habits habits;
    double least;
  } cases[] = {{{3000, 4000, 3000}, 99.99},
               {{30000, 40000, 30000}, 99.99},
               {{300, 400, 3000}, 99.9}, /* much later than the work takes */
               {{200, 100, 5000}, 95}};
  const int64_t beginnings_ns[] = {1000000 * MS, 40000000000 * MS}; /* a computer may be up for years */
  for (int c = 0; c < 8; c++) {
    began_ns = beginnings_ns[c % 2];
    double percent = charged_percent(&cases[c / 2].habits);
    printf("up to %lld us late: %.4f %% charged\n", (long long)cases[c / 2].habits.late, percent);
    CHECK(percent > cases[c / 2].least && percent <= 100, "case %d: %.4f %%", c, percent);
  }
}

/* ---- at the same time -------------------------------------------------------------------------------------------- */

#define HOLE_US 900000
#define PART_US 3

static uint8_t taken_us[HOLE_US];

/* All want the same: whoever is behind finds nothing, until it is there where it may be first. */
static void *take_parts(void *nothing) {
  struct span taken;
  for (int64_t at_us = 0; at_us < HOLE_US; at_us += PART_US) {
    struct span wanted = {began_ns + at_us * US, began_ns + (at_us + PART_US) * US};
    if (holes_take(&device, wanted, began_ns + HOLE_US * US, &taken))
      for (int64_t us = (taken.start_ns - began_ns) / US; us < (taken.end_ns - began_ns) / US; us++)
        __atomic_add_fetch(&taken_us[us], 1, __ATOMIC_RELAXED);
  }
  return nothing;
}

static void check_nothing_is_taken_twice(void) {
  pthread_t threads[WORKERS];
  int64_t sum_us = 0;
  device = (struct vgpu_device_shared){0};
  holes_add(&device, (struct span){began_ns, began_ns + HOLE_US * US}, began_ns + HOLE_US * US);
  for (int i = 0; i < WORKERS; i++)
    CHECK(pthread_create(&threads[i], NULL, take_parts, NULL) == 0, "thread %d", i);
  for (int i = 0; i < WORKERS; i++)
    pthread_join(threads[i], NULL);
  for (int i = 0; i < HOLE_US; i++) {
    CHECK(taken_us[i] <= 1, "microsecond %d was taken %d times", i, taken_us[i]);
    sum_us += taken_us[i];
  }
  CHECK(sum_us > HOLE_US / 2, "%lld us were taken", (long long)sum_us);
  printf("%lld of %d us taken by %d at the same time\n", (long long)sum_us, HOLE_US, WORKERS);
}

/* ---- damage ------------------------------------------------------------------------------------------------------ */

/* Whatever is in the file: no more is charged than was measured. */
static void check_damage(void) {
  struct worker random = {.random_state = 7};
  for (int i = 0; i < 20000; i++) {
    uint8_t *bytes = (uint8_t *)device.holes;
    for (size_t b = 0; b < sizeof device.holes; b++)
      bytes[b] = (uint8_t)(i % 3 == 0 ? random_below(&random, 256) : -random_below(&random, 2));
    if (i % 3 == 1)
      for (int h = 0; h < VGPU_HOLES; h++) /* near the present */
        device.holes[h] = (uint64_t)(began_ns / US - random_below(&random, 2000000)) << 20 | device.holes[h] >> 44;
    device.charged_until_ns = began_ns + random_below(&random, 3000) * MS - 1500 * MS;
    int64_t length_ns = random_below(&random, 1000) * MS;
    int64_t charged_ns = bucket_charge(&device, began_ns - length_ns, began_ns, began_ns, 50);
    CHECK(charged_ns >= 0 && charged_ns <= length_ns, "%lld of %lld ns", (long long)charged_ns, (long long)length_ns);
  }
}

int main(void) {
  check_late_charges();
  check_nothing_is_taken_twice();
  check_damage();
  return 0;
}
