/* How evenly programs of short kernels get on under a limit, in windows of a quarter of a second, on simulated time;
 * also on a host that sees late what the GPU has done. */
#include "cases.h"
#include "check.h"
#include "gpu_model.h"

#include <math.h>

#define WINDOWS 40
#define WINDOW_NS (250 * MS)

struct work {
  const char *name;
  int64_t launch_ns; /* of one kernel, or of a graph's */
  bool synchronizes;
};

static const struct work works[] = {
    {"1 ms", MS, false},       {"graphs of 1.1 ms", 1100 * US, false},
    {"50 us", 50 * US, false}, {"50 us, then a synchronise", 50 * US, true},
    {"4 us", 4 * US, false},
};

static const uint32_t percents[] = {10, 25, 50, 75, 90};

static void run_work(struct model_process *process) {
  const struct work *work = model_argument(process);
  for (;;) {
    model_launch(process, 0, 0, work->launch_ns);
    if (work->synchronizes)
      model_synchronize(process, 0);
  }
}

struct result {
  double deviation_percent; /* standard deviation of the launches that a window completes, of their mean */
  double share;             /* of the GPU's time, in percent */
  double charged;           /* for each nanosecond of work */
};

static struct result run(const struct work *work, uint32_t percent, int64_t late_ns) {
  double sum = 0, squares = 0;
  model_start_over(1);
  model_set_lateness(late_ns);
  struct model_container *container = model_container(0);
  container->percent = percent;
  struct model_process *process = model_start(0, run_work, work, 0);
  model_run(2 * S);
  int64_t worked_ns = model_worked_ns(process), before = worked_ns / work->launch_ns;
  uint64_t busy_ns = container->device[0].busy_ns;
  for (int i = 1; i <= WINDOWS; i++) {
    model_run(2 * S + i * WINDOW_NS);
    int64_t completed = model_worked_ns(process) / work->launch_ns - before;
    before += completed;
    sum += (double)completed;
    squares += (double)(completed * completed);
  }
  double mean = sum / WINDOWS;
  worked_ns = model_worked_ns(process) - worked_ns;
  return (struct result){.deviation_percent = 100 * sqrt(squares / WINDOWS - mean * mean) / mean,
                         .share = 100.0 * (double)worked_ns / (WINDOWS * WINDOW_NS),
                         .charged = (double)(container->device[0].busy_ns - busy_ns) / (double)worked_ns};
}

/* For 70 ms of each second waits end late, which looks like longer work: a little more is charged then. */
static void check_late_waits(void) {
  const struct work *work = &works[3];
  double in_time = run(work, VGPU_NO_SM_LIMIT, 0).share;
  for (int p = 0; p < 5; p++) {
    struct result late = run(work, percents[p], 500 * US);
    double share = 100 * late.share / in_time, lost = fmax(0.07 * percents[p] - 2, 0);
    printf("%s, late at %u: %.2f %%, charged %.3f times, %.2f %%\n", work->name, percents[p], share, late.charged,
           late.deviation_percent);
    CHECK(share < percents[p] + 0.5 && share > percents[p] - lost - 0.5, "at %u: %.2f %%", percents[p], share);
    CHECK(late.charged > 1 && late.charged < 1.08, "at %u: charged %.3f times", percents[p], late.charged);
  }
}

static void check_windows(const struct work *work) {
  for (int p = 0; p < 5; p++) {
    double deviation = run(work, percents[p], 0).deviation_percent;
    printf("%s at %u: %.2f %%\n", work->name, percents[p], deviation);
    CHECK(deviation < 2, "%s at %u: %.2f %%", work->name, percents[p], deviation);
  }
}

int main(int count, char **names) {
  cases_begin(count, names);
  CASE("kernels of 1 ms") check_windows(&works[0]);
  CASE("graphs of 1.1 ms") check_windows(&works[1]);
  CASE("kernels of 50 us") check_windows(&works[2]);
  CASE("kernels of 50 us, each waited for") check_windows(&works[3]);
  CASE("kernels of 4 us") check_windows(&works[4]);
  CASE("late waits") check_late_waits();
  return cases_end();
}
