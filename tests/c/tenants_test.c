/*
 * Two tenants on simulated time, of short kernels, and of ones that take now short and now long: what is in flight
 * cannot be known then, and still each is to have the GPU for itself while it has the turn. Mixed by the GPU, they
 * would lose a tenth of it; and short kernels that were measured one by one, a twentieth.
 */
#include "check.h"
#include "gpu_model.h"

#include <stdlib.h>

static const struct {
  int64_t least_ns, most_ns;
} kernels[] = {{50 * US, 50 * US}, {50 * US, 500 * US}, {200 * US, 4 * MS}, {MS, 10 * MS}};

static const uint32_t limits[][2] = {{50, 50}, {30, 70}, {20, 40}};

struct program {
  int kernel;
  int waits_after; /* so many launches; 0: never */
};

static unsigned random_state;

static void run(struct model_process *process) {
  const struct program *program = model_argument(process);
  int64_t least_ns = kernels[program->kernel].least_ns, most_ns = kernels[program->kernel].most_ns;
  for (int i = 1;; i++) {
    double part = (double)rand_r(&random_state) / RAND_MAX;
    model_launch_as(process, 0, 0, least_ns + (int64_t)(part * (double)(most_ns - least_ns)), 1);
    if (program->waits_after > 0 && i % program->waits_after == 0)
      model_synchronize(process, 0);
  }
}

static void check_together(struct program program, const uint32_t percents[2]) {
  struct model_process *tenants[2];
  int64_t before_ns[2];
  double shares[2];
  random_state = 1;
  model_start_over(3);
  for (int i = 0; i < 2; i++) {
    model_container(i)->percent = percents[i];
    tenants[i] = model_start(i, run, &program, i * MS);
  }
  model_run(S);
  for (int i = 0; i < 2; i++)
    before_ns[i] = model_worked_ns(tenants[i]);
  model_run(11 * S);
  for (int i = 0; i < 2; i++)
    shares[i] = (double)(model_worked_ns(tenants[i]) - before_ns[i]) * 100 / (10 * S);
  printf("%lld to %lld us, %s, at %u and %u: %.2f + %.2f = %.2f %%\n", (long long)kernels[program.kernel].least_ns / US,
         (long long)kernels[program.kernel].most_ns / US, program.waits_after > 0 ? "waited for" : "flat out",
         percents[0], percents[1], shares[0], shares[1], shares[0] + shares[1]);
  double sum = percents[0] + percents[1], lost = sum - shares[0] - shares[1];
  bool is_all = sum == 100, flat_out = program.kernel == 0 && program.waits_after == 0;
  /* Where nothing is left over, a switch for each slice is lost: 0.6 %, of which each pays its own. */
  double most_lost = !is_all ? 0.8 : flat_out ? 1 : 2.4;
  CHECK(lost < most_lost, "together %.2f %%", sum - lost);
  for (int i = 0; i < 2; i++) {
    double most_missing = flat_out ? 0.6 : i == 0 ? 1.25 : 1.9;
    CHECK(shares[i] > percents[i] - most_missing && shares[i] < percents[i] + 0.2, "%.2f %%", shares[i]);
  }
  if (is_all && flat_out) /* and neither pays for both */
    CHECK(percents[0] - shares[0] > lost / 4 && percents[1] - shares[1] > lost / 4, "%.2f %% lost", lost);
}

int main(void) {
  setbuf(stdout, NULL);
  for (int k = 0; k < (int)(sizeof kernels / sizeof *kernels); k++)
    for (int waits_after = 0; waits_after <= 20; waits_after += 20)
      for (int l = 0; l < (int)(sizeof limits / sizeof *limits); l++)
        check_together((struct program){k, waits_after}, limits[l]);
  return 0;
}
