/* The GPU's clock on the wall clock, for days: cuEventElapsedTime answers with a float of milliseconds, whose steps are
 * 8 ms a day later, and the two clocks drift apart. */
#include "check.h"
#include "compute/timeline.h"

#include <stdlib.h>

#define US 1000LL
#define MS 1000000LL
#define S 1000000000LL
#define DAY (86400 * S)

#define DRIFT 30e-6
#define LENGTH_NS MS
#define PLACED_WITHIN_NS (100 * US)
#define MEASURED_WITHIN_NS US

static int markers_alive;
static int64_t ahead_ns; /* the clock of this GPU, of that of the first one */

static int64_t *record(int64_t wall_ns) {
  int64_t *marker = malloc(sizeof *marker);
  *marker = wall_ns + (int64_t)((double)wall_ns * DRIFT) + ahead_ns;
  markers_alive++;
  return marker;
}

static void recycle(void *marker) {
  markers_alive--;
  free(marker);
}

static bool elapsed(void *start, void *end, int64_t *elapsed_ns) {
  float milliseconds = (float)((double)(*(int64_t *)end - *(int64_t *)start) / 1e6);
  *elapsed_ns = (int64_t)((double)milliseconds * 1e6);
  return true;
}

static const struct meter_driver driver = {.elapsed_ns = elapsed, .recycle = recycle};
static struct timeline timeline;

static int64_t place(int64_t ended_ns, int64_t recorded_ns, int64_t observed_ns) {
  int64_t wall_ns = timeline_place(&timeline, &driver, record(ended_ns), recorded_ns, observed_ns);
  CHECK(wall_ns >= recorded_ns && wall_ns <= observed_ns, "between being recorded and being seen");
  return wall_ns;
}

/* The GPU is idle before one batch of every 16, which is seen to end at once. */
static void check_batches(int64_t from_ns, int64_t duration_ns) {
  int count = 0;
  for (int64_t end_ns = from_ns; end_ns < from_ns + duration_ns; end_ns += 50 * MS, count++) {
    int64_t recorded_ns = end_ns - LENGTH_NS - (count % 16 == 0 ? 10 * US : 4 * MS);
    int64_t observed_ns = end_ns + (count % 16 == 0 ? 20 * US : MS);
    int64_t placed_ns = place(end_ns, recorded_ns, observed_ns);
    int64_t measured_ns = placed_ns - place(end_ns - LENGTH_NS, recorded_ns, observed_ns);
    CHECK(count < 16 || llabs(measured_ns - LENGTH_NS) <= MEASURED_WITHIN_NS, "after %lld s: %lld ns",
          (long long)(end_ns / S), (long long)measured_ns);
    CHECK(count < 16 || llabs(placed_ns - end_ns) <= PLACED_WITHIN_NS, "after %lld s: off by %lld ns",
          (long long)(end_ns / S), (long long)(placed_ns - end_ns));
    CHECK(markers_alive == 1, "%d", markers_alive);
  }
}

/* The process was moved to another GPU, whose clock is behind. So much is known: it is early, by no more than this. */
static void check_another_gpu(int64_t now_ns) {
  ahead_ns = -S;
  place(now_ns, now_ns - 7 * MS, now_ns);
  CHECK(timeline.early_ns == 7 * MS, "early by up to %lld us", (long long)timeline.early_ns / US);
  int64_t end_ns = now_ns + 50 * MS, placed_ns = place(end_ns, end_ns - 10 * US, end_ns);
  CHECK(llabs(placed_ns - end_ns) <= PLACED_WITHIN_NS && timeline.early_ns == 0, "true again");
}

int main(void) {
  check_batches(DAY, 3 * DAY);
  check_batches(14 * DAY, DAY); /* having been idle for ten */
  check_another_gpu(15 * DAY);
  return 0;
}
