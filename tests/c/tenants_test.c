/*
 * Two tenants on simulated time, of short kernels, and of ones that take now short and now long: what is in flight
 * cannot be known then, and still each is to have the GPU for itself while it has the turn. Mixed by the GPU, they
 * would lose a tenth of it; and short kernels that were measured one by one, a twentieth.
 *
 * And of programs whose host is slower than the GPU for some milliseconds of each step, as the optimizer of a training
 * is. Between two launches they are idle then, and for longer than a turn is kept for them: what they launch after it
 * has been taken may not be measured with the other's time.
 */
#include "cases.h"
#include "check.h"
#include "gpu_model.h"

#include <stdlib.h>

static const struct {
  int64_t least_ns, most_ns;
} kernels[] = {{50 * US, 50 * US}, {50 * US, 500 * US}, {200 * US, 4 * MS}, {MS, 10 * MS}};

static const uint32_t limits[][2] = {{50, 50}, {30, 70}, {20, 40}};

struct program {
  int kernel;
  int waits_after;     /* so many launches; 0: never */
  uint32_t most_ahead; /* that it watches, without the driver; 0: it does not */
};

static unsigned random_state;

static void run(struct model_process *process) {
  const struct program *program = model_argument(process);
  int64_t least_ns = kernels[program->kernel].least_ns, most_ns = kernels[program->kernel].most_ns;
  for (int i = 1;; i++) {
    double part = (double)rand_r(&random_state) / RAND_MAX;
    model_launch_as(process, 0, 0, least_ns + (int64_t)(part * (double)(most_ns - least_ns)), 1);
    if (program->most_ahead > 0)
      model_watch(process, 0, 0, program->most_ahead, least_ns);
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
  const char *how = program.most_ahead > 0 ? "2 ms ahead" : program.waits_after > 0 ? "waited for" : "flat out";
  printf("%lld to %lld us, %s, at %u and %u: %.2f + %.2f = %.2f %%\n", (long long)kernels[program.kernel].least_ns / US,
         (long long)kernels[program.kernel].most_ns / US, how, percents[0], percents[1], shares[0], shares[1],
         shares[0] + shares[1]);
  double sum = percents[0] + percents[1], lost = sum - shares[0] - shares[1];
  bool is_all = sum == 100, flat_out = program.kernel == 0 && program.waits_after == 0;
  /* A switch for each slice is lost where nothing is left over: 0.6 %, of which each pays its own. */
  double most_lost = !is_all ? 1.2 : !flat_out ? 2.6 : program.most_ahead > 0 ? 1.5 : 1.05;
  CHECK(lost < most_lost, "together %.2f %%", sum - lost);
  for (int i = 0; i < 2; i++) {
    double most_missing = flat_out ? 0.95 : 1.9;
    CHECK(shares[i] > percents[i] - most_missing && shares[i] < percents[i] + 0.2, "%.2f %%", shares[i]);
  }
  if (is_all && flat_out) /* and neither pays for both */
    CHECK(percents[0] - shares[0] > lost / 5 && percents[1] - shares[1] > lost / 5, "%.2f %% lost", lost);
}

/* Each step ends with as many launches of an optimizer, each slower than what it launches. */
static void train(struct model_process *process) {
  const int *optimizer_launches = model_argument(process);
  for (;;) {
    for (int i = 0; i < 190; i++) {
      int64_t short_ns = 4 * US + i % 5 * 300;
      model_launch_as(process, 0, 0, short_ns, (uint64_t)short_ns);
      model_think(process, 34 * US);
      if (i % 3 == 0 && i < 180) {
        model_launch_as(process, 0, 0, 200 * US + i % 9 * 22 * US, 1 + (uint64_t)i % 9);
        model_think(process, 34 * US);
      }
    }
    for (int i = 0; i < *optimizer_launches; i++) {
      model_launch_as(process, 0, 0, 30 * US, 100);
      model_think(process, 80 * US);
    }
  }
}

/* A training loses its lead with each turn: the GPU waits for the optimizer then, and nobody is to pay for more than
 * that. When the host stood still while a slice drained, and slices were all of one length, two had 96.5, 94.8 and 92.7
 * % together with 10, 20 and 30 launches of the optimizer; but 89.4 with 40. */
static void check_training(int optimizer_launches) {
  struct model_process *tenants[2];
  int64_t before_ns[2], charged_ns[2];
  double sum = 0;
  model_start_over(3);
  for (int i = 0; i < 2; i++) {
    model_container(i)->percent = 50;
    tenants[i] = model_start(i, train, &optimizer_launches, i * MS);
  }
  model_run(S);
  for (int i = 0; i < 2; i++) {
    before_ns[i] = model_worked_ns(tenants[i]);
    charged_ns[i] = (int64_t)model_container(i)->device[0].busy_ns;
  }
  model_run(11 * S);
  for (int i = 0; i < 2; i++) {
    double share = (double)(model_worked_ns(tenants[i]) - before_ns[i]) * 100 / (10 * S);
    double charged = (double)((int64_t)model_container(i)->device[0].busy_ns - charged_ns[i]) * 100 / (10 * S);
    printf("training, %d launches of its optimizer, at 50: %.2f %%, charged %.2f\n", optimizer_launches, share,
           charged);
    CHECK(charged < share + 2.1, "%.2f %%, charged %.2f", share, charged);
    sum += share;
  }
  static const double least[] = {97.5, 97, 95.5, 93, 87};
  CHECK(sum > least[optimizer_launches / 10], "together %.2f %%", sum);
}

static void wait_for_each(struct model_process *process) {
  for (;;) {
    model_launch_as(process, 0, 0, 50 * US, 1);
    model_synchronize(process, 0);
    model_think(process, 11 * US);
  }
}

/* The work that so many of them do in ten seconds, each with its part of the GPU. */
static int64_t work_of_waiting_ns(int tenants) {
  struct model_process *processes[2];
  int64_t worked_ns = 0;
  model_start_over(3);
  for (int i = 0; i < tenants; i++) {
    model_container(i)->percent = 100 / tenants;
    processes[i] = model_start(i, wait_for_each, NULL, i * MS);
  }
  model_run(S);
  for (int i = 0; i < tenants; i++)
    worked_ns -= model_worked_ns(processes[i]);
  model_run(11 * S);
  for (int i = 0; i < tenants; i++)
    worked_ns += model_worked_ns(processes[i]);
  return worked_ns;
}

/* The first work of each turn is late by the GPU's switch. When that was a reason to mark the ends of those after it,
 * for fear of a processor that is at something else, two tenants had 95.7 % of what one has. */
static void check_waiting(void) {
  double percent = (double)work_of_waiting_ns(2) * 100 / (double)work_of_waiting_ns(1);
  printf("two that wait for each kernel: %.2f %% of what one does\n", percent);
  CHECK(percent > 95.5, "%.2f %%", percent);
}

static void check_training_with_any_optimizer(void) {
  for (int optimizer_launches = 0; optimizer_launches <= 40; optimizer_launches += 10)
    check_training(optimizer_launches);
}

static void check_together_at_all_limits(int kernel) {
  for (int waits_after = 0; waits_after <= 20; waits_after += 20)
    for (int l = 0; l < (int)(sizeof limits / sizeof *limits); l++)
      check_together((struct program){kernel, waits_after, 0}, limits[l]);
}

/* The batch in which the slice ends is not full yet when the last lease is written. */
static void check_together_ahead(void) {
  for (int l = 0; l < (int)(sizeof limits / sizeof *limits); l++)
    check_together((struct program){0, 0, 40}, limits[l]);
}

int main(int count, char **names) {
  cases_begin(count, names);
  CASE("two that wait for each kernel") check_waiting();
  CASE("training") check_training_with_any_optimizer();
  CASE("kernels of 50 us") check_together_at_all_limits(0);
  CASE("kernels of 50 us, 2 ms ahead") check_together_ahead();
  CASE("kernels of 50 to 500 us") check_together_at_all_limits(1);
  CASE("kernels of 200 us to 4 ms") check_together_at_all_limits(2);
  CASE("kernels of 1 to 10 ms") check_together_at_all_limits(3);
  return cases_end();
}
