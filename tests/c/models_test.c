/* What programs of many small kernels get of a GPU, training and inference, on simulated time. */
#include "check.h"
#include "gpu_model.h"

struct model {
  const char *name;
  int64_t host_ns; /* between launches, beside the launch itself */
  int long_kernels, short_kernels;
  bool varied; /* long ones that take now more, now less, under the same name */
  bool waits;  /* for each step, and then does something else for a while */
  int64_t think_ns;
  int new_kernels;     /* in each step; others than in all before */
  uint32_t most_ahead; /* launches; 0: as many as it can */
};

/* The host is faster than the GPU over the whole, and slower in parts; or always slower. */
static const struct model models[] = {
    {"training", 7 * US, 36, 260, false, false, 0, 0, 0},
    {"training, slow host", 14 * US, 36, 260, false, false, 0, 0, 0},
    {"training, even host", 19 * US, 36, 260, false, false, 0, 0, 0},
    {"training, slower host", 22 * US, 36, 260, false, false, 0, 0, 0},
    {"training, new shapes", 14 * US, 36, 260, false, false, 0, 1, 0},
    {"training, a step ahead", 14 * US, 36, 260, false, false, 0, 0, 300},
    {"training, nearly even host", 28 * US, 60, 245, false, false, 0, 0, 2000},
    {"training, bound by its host", 34 * US, 60, 245, false, false, 0, 0, 2000},
    {"inference, long kernels", 12 * US, 60, 240, true, true, 60 * US, 0, 0},
    {"inference", 7 * US, 0, 200, false, true, 60 * US, 0, 0},
    {"inference, new shapes", 7 * US, 0, 200, false, true, 60 * US, 1, 0},
    {"inference, slow host", 14 * US, 0, 90, false, true, 150 * US, 0, 0},
    {"inference, very slow host", 11 * US, 0, 67, false, true, 90 * US, 0, 0},
    {"inference, long steps", 4 * US, 0, 1000, false, true, 60 * US, 0, 0},
    {"inference, slow turnaround", 4 * US, 0, 1500, false, true, 500 * US, 0, 0},
    {"many new shapes", 4 * US, 0, 1000, false, true, 60 * US, 30, 0},
};
static int64_t steps;
static uint64_t newest_kernel = 1000000;

static void run_model(struct model_process *process) {
  const struct model *model = model_argument(process);
  for (;; steps++) {
    int longs_left = model->long_kernels;
    for (int i = 0; i < model->short_kernels; i++) {
      int64_t short_ns = 4 * US + i % 5 * 300;
      bool is_new = model->new_kernels > 0 && i % (model->short_kernels / model->new_kernels) == 0;
      model_launch_as(process, 0, 0, short_ns, is_new ? ++newest_kernel : (uint64_t)short_ns);
      model_think(process, model->host_ns);
      if (longs_left > 0 && i % 4 == 0) {
        int64_t duration_ns = (model->varied ? longs_left / 6 % 2 != 0 ? 300 : 60 : 150) * US;
        model_launch_as(process, 0, 0, duration_ns, 1);
        model_think(process, model->host_ns);
        longs_left--;
      }
    }
    if (model->waits)
      model_synchronize(process, 0);
    if (model->most_ahead > 0)
      model_wait_behind(process, 0, model->most_ahead);
    model_think(process, model->think_ns);
  }
}

struct drowsiness {
  int64_t duration_ns;
  double times_slower;
};

static double steps_of(const struct model *model, const struct drowsiness *drowsiness, uint32_t percent) {
  model_start_over(1);
  model_set_drowsiness(drowsiness->duration_ns, drowsiness->times_slower);
  model_container(0)->percent = percent;
  model_start(0, run_model, model, 0);
  model_run(S);
  int64_t before = steps;
  model_run(6 * S);
  return (double)(steps - before);
}

static void check_model(const struct model *model, const struct drowsiness *drowsiness, double bound) {
  static const uint32_t percents[] = {10, 25, 50, 75, 90};
  double unlimited = steps_of(model, drowsiness, VGPU_NO_SM_LIMIT);
  for (int p = 0; p < 5; p++) {
    double share = 100 * steps_of(model, drowsiness, percents[p]) / unlimited;
    printf("%27s at %2u: %6.2f %%\n", model->name, percents[p], share);
    CHECK(share > percents[p] - bound && share < percents[p] + bound, "%s at %u: %.2f %%", model->name, percents[p],
          share);
  }
}

static void check_models(void) {
  static const struct drowsiness usual = {5 * MS, 1.3};
  for (size_t m = 0; m < sizeof models / sizeof *models; m++)
    check_model(&models[m], &usual, 0.75);
}

/* Hosts differ in how long a sleep slows them down, and how much. */
static void check_drowsy_hosts(void) {
  static const struct drowsiness hosts[] = {{2 * MS, 2.0}, {10 * MS, 1.6}, {25 * MS, 1.8}};
  static const struct model drowsy[] = {
      {"training, nearly even host", 28 * US, 60, 245, false, false, 0, 0, 2000},
      {"inference, very slow host", 11 * US, 0, 67, false, true, 90 * US, 0, 0},
      {"inference, short steps", 17 * US, 20, 35, false, true, 190 * US, 0, 0},
  };
  for (size_t h = 0; h < sizeof hosts / sizeof *hosts; h++) {
    printf("slower by %.1f for %d ms after a sleep:\n", hosts[h].times_slower, (int)(hosts[h].duration_ns / MS));
    for (size_t m = 0; m < sizeof drowsy / sizeof *drowsy; m++)
      check_model(&drowsy[m], &hosts[h], 1.5);
  }
}

/* Bound by the GPU, and then by its host: which of the two, is seen every half a minute at a limit as small as this. */
static void run_changing(struct model_process *process) {
  while (model_now_ns(process) < 5 * S)
    model_launch(process, 0, 0, 20 * US);
  for (;; steps++) {
    model_launch(process, 0, 0, 4 * US);
    model_think(process, 10 * US);
  }
}

static double changed_steps(uint32_t percent) {
  model_start_over(1);
  model_container(0)->percent = percent;
  model_start(0, run_changing, NULL, 0);
  model_run(75 * S);
  int64_t before = steps;
  model_run(85 * S);
  return (double)(steps - before);
}

static void check_change(void) {
  double unlimited = changed_steps(VGPU_NO_SM_LIMIT), share = 100 * changed_steps(10) / unlimited;
  printf("bound by its host by now, at 10: %.2f %%\n", share);
  CHECK(share > 9.1 && share < 10.9, "%.2f %%", share);
}

/* Its kernels become a hundred times as long, all of them or the last one of each row, on a host that is silent until
 * they are done: nobody sees them end. */
struct silent {
  int kernels;
  int64_t think_ns;
  bool only_last;
};

static void run_silent(struct model_process *process) {
  const struct silent *silent = model_argument(process);
  for (;;) {
    bool is_long = model_now_ns(process) > 2 * S;
    for (int i = 1; i <= silent->kernels; i++) {
      bool becomes_long = !silent->only_last || i == silent->kernels;
      uint64_t work = silent->only_last ? 1 : (uint64_t)i;
      model_launch_as(process, 0, 0, is_long && becomes_long ? 2 * MS : 20 * US, work);
    }
    model_think(process, silent->think_ns);
    model_synchronize(process, 0);
  }
}

static void run_flat_out(struct model_process *process) {
  for (;;)
    model_launch(process, 0, 0, 50 * US);
}

static double share_of_silent(const struct silent *silent, uint32_t percent, bool in_company) {
  model_start_over(1);
  model_container(0)->percent = percent;
  model_container(1)->percent = 50;
  struct model_process *process = model_start(0, run_silent, silent, 0);
  if (in_company)
    model_start(1, run_flat_out, NULL, 0);
  model_run(5 * S);
  int64_t before_ns = model_worked_ns(process);
  model_run(15 * S);
  return (double)(model_worked_ns(process) - before_ns) / (10 * S) * 100;
}

static void check_silent(void) {
  static const struct silent all[] = {{1, 5 * MS, false},    {3, 10 * MS, false},   {10, 10 * MS, false},
                                      {10, 30 * MS, false},  {40, 100 * MS, false}, {6, 4 * MS, true},
                                      {3, 4500 * US, false}, {3, 5800 * US, false}, {10, 19 * MS, false}};
  for (size_t i = 0; i < sizeof all / sizeof *all; i++)
    for (uint32_t percent = 10; percent <= 50; percent += 20)
      for (int in_company = 0; in_company < 2; in_company++) {
        double share = share_of_silent(&all[i], percent, in_company);
        printf("%s of %d kernels have become longer, unseen, at %u%s: %.2f %%\n", all[i].only_last ? "the last" : "all",
               all[i].kernels, percent, in_company ? ", in company" : "", share);
        /* Its last kernel is believed to be one of the short ones in one row of 17. */
        double most = percent * (all[i].only_last ? 18.0 / 17 : 1) + 0.5;
        CHECK(share > (in_company ? 5 : 9.5) && share < most, "%d kernels: %.2f %%", all[i].kernels, share);
      }
}

int main(void) {
  setbuf(stdout, NULL);
  check_models();
  check_drowsy_hosts();
  check_change();
  check_silent();
  return 0;
}
