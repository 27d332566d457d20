/* How evenly programs of short kernels get on under a limit, in windows of a quarter of a second, on simulated time. */
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

static void run_work(struct model_process *process) {
  const struct work *work = model_argument(process);
  for (;;) {
    model_launch(process, 0, 0, work->launch_ns);
    if (work->synchronizes)
      model_synchronize(process, 0);
  }
}

/* The standard deviation of the launches that a window completes, in percent of their mean. */
static double deviation_percent(const struct work *work, uint32_t percent) {
  double sum = 0, squares = 0;
  model_start_over(1);
  model_container(0)->percent = percent;
  struct model_process *process = model_start(0, run_work, work, 0);
  model_run(2 * S);
  int64_t before = model_worked_ns(process) / work->launch_ns;
  for (int i = 1; i <= WINDOWS; i++) {
    model_run(2 * S + i * WINDOW_NS);
    int64_t completed = model_worked_ns(process) / work->launch_ns - before;
    before += completed;
    sum += (double)completed;
    squares += (double)(completed * completed);
  }
  double mean = sum / WINDOWS;
  return 100 * sqrt(squares / WINDOWS - mean * mean) / mean;
}

int main(void) {
  static const uint32_t percents[] = {10, 25, 50, 75, 90};
  for (size_t w = 0; w < sizeof works / sizeof *works; w++)
    for (int p = 0; p < 5; p++) {
      double deviation = deviation_percent(&works[w], percents[p]);
      printf("%s at %u: %.2f %%\n", works[w].name, percents[p], deviation);
      CHECK(deviation < 2, "%s at %u: %.2f %%", works[w].name, percents[p], deviation);
    }
  return 0;
}
