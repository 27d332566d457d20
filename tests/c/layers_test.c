/*
 * Inference whose steps are few and long kernels, on simulated time: what its kernels cost is known from their first
 * launch, which may have taken more or less time than all later ones; and after a wait at the gate its host has no
 * lead, so that what they are believed to cost is part of what they are charged.
 */
#include "check.h"
#include "gpu_model.h"

#define KERNELS 9 /* of a layer */
#define LAYERS 6

/* A transformer of 2048 tokens on an H200: what its host takes before each launch, and its GPU for it. */
static const struct {
  int64_t host_ns, gpu_ns;
} layer[KERNELS] = {{140 * US, 322 * US}, {45 * US, 575 * US}, {25 * US, 102 * US},
                    {15 * US, 5 * US},    {15 * US, 8 * US},   {20 * US, 347 * US},
                    {17 * US, 363 * US},  {15 * US, 5 * US},   {15 * US, 9 * US}};

/* How many times as long the first launch of each took. */
static const double first_times[][KERNELS] = {
    {1, 1, 1, 1, 1, 1, 1, 1, 1},           {1, 1, 1, 1, 1, 1, 0.6, 1, 1},   {1, 1, 1, 1, 1, 1, 2, 1, 1},
    {0.7, 0.7, 0.7, 1, 1, 0.7, 0.7, 1, 1}, {2, 1, 0.5, 5, 5, 0.5, 1, 5, 5}, {1.5, 0.6, 1.5, 20, 20, 1.5, 0.6, 20, 20},
};

static const struct {
  int64_t duration_ns;
  double times_slower;
} drowsy_hosts[] = {{5 * MS, 1.3}, {25 * MS, 1.8}, {25 * MS, 2.0}};

static int64_t steps;

static void run_steps(struct model_process *process) {
  const double *times = model_argument(process);
  for (bool first = true;; first = false, steps++) {
    for (int l = 0; l < LAYERS; l++)
      for (int k = 0; k < KERNELS; k++) {
        model_think(process, layer[k].host_ns);
        double gpu_ns = (double)layer[k].gpu_ns * (first && l == 0 ? times[k] : 1);
        model_launch_as(process, 0, 0, (int64_t)gpu_ns, (uint64_t)k + 1);
      }
    model_synchronize(process, 0);
    model_think(process, 190 * US);
  }
}

static double steps_at(uint32_t percent, int host, const double *times) {
  model_start_over(1);
  model_set_drowsiness(drowsy_hosts[host].duration_ns, drowsy_hosts[host].times_slower);
  model_container(0)->percent = percent;
  model_start(0, run_steps, times, 0);
  model_run(S);
  int64_t before = steps;
  model_run(11 * S);
  return (double)(steps - before);
}

static void check_shares(int host, int first) {
  static const uint32_t percents[] = {10, 25, 50, 75, 90};
  double unlimited = steps_at(VGPU_NO_SM_LIMIT, host, first_times[first]);
  printf("host %d, first launches %d:", host, first);
  for (int p = 0; p < 5; p++) {
    double share = 100 * steps_at(percents[p], host, first_times[first]) / unlimited;
    printf(" %.2f", share);
    CHECK(share > percents[p] - 1 && share < percents[p] + 1, "host %d, first launches %d at %u: %.2f %%", host, first,
          percents[p], share);
  }
  puts("");
}

int main(void) {
  setbuf(stdout, NULL);
  for (size_t host = 0; host < sizeof drowsy_hosts / sizeof *drowsy_hosts; host++)
    for (size_t first = 0; first < sizeof first_times / sizeof *first_times; first++)
      check_shares((int)host, (int)first);
  return 0;
}
