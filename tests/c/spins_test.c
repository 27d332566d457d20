/*
 * Kernels that spin until another kernel has begun: of another rank on another GPU, as in a collective, and of another
 * stream of their process. While it spins the GPU is busy, and the launch that would end it must come all the same.
 */
#include "check.h"
#include "rows.h"

/* ---- collectives ------------------------------------------------------------------------------------------------- */

#define STEPS 500
#define WARM_UP 20 /* steps that are not counted: the first kernels are not known yet */
#define STEP_KERNELS 10

struct job {
  int container;
  uint32_t most_ahead;      /* launches on a GPU, or 0: each step is waited for */
  int ranks[2], rank_count; /* one for each GPU */
  bool by_kernel;           /* launches on its GPUs in turn, else one rank's step after the other's */
  /* How it ended. */
  int steps;
  int64_t counted_from_ns, last_step_ns, longest_ns;
};

static void launch_step(struct model_process *process, const struct job *job) {
  model_think(process, model_random_ns(process, 0, 100 * US));
  int turns = job->by_kernel ? 1 : job->rank_count, at_a_time = job->rank_count / turns;
  for (int turn = 0; turn < turns; turn++) {
    const int *ranks = &job->ranks[turn * at_a_time];
    for (int i = 0; i < STEP_KERNELS; i++)
      for (int r = 0; r < at_a_time; r++)
        model_launch(process, ranks[r], 0, MS);
    for (int r = 0; r < at_a_time; r++)
      model_launch_spin(process, ranks[r], job->container * 8000 + job->steps);
  }
}

static void run_ranks(struct model_process *process) {
  struct job *job = (struct job *)model_argument(process);
  for (;; job->steps++) {
    int64_t began_ns = model_now_ns(process);
    launch_step(process, job);
    for (int r = 0; r < job->rank_count; r++)
      model_wait_behind(process, job->ranks[r], job->most_ahead);
    job->last_step_ns = model_now_ns(process);
    if (job->steps == WARM_UP)
      job->counted_from_ns = began_ns;
    if (job->steps >= WARM_UP && job->last_step_ns - began_ns > job->longest_ns)
      job->longest_ns = job->last_step_ns - began_ns;
  }
}

/* A host that launches a whole step on one GPU, and then on the other, is held on one while the other is idle. */
struct kind {
  const char *name;
  int processes;
  uint32_t most_ahead;
  bool by_kernel;
  double part; /* of what the limit leaves of the speed, at least */
};
static const struct kind kinds[] = {
    {"two processes, each step waited for", 2, 0, false, 0.9},
    {"two processes, two steps ahead", 2, 22, false, 0.9},
    {"one process, its GPUs in turn", 1, 0, true, 0.9},
    {"one process, one GPU after the other", 1, 0, false, 0.45},
};

static void start(const struct kind *kind, struct job *jobs, int container, uint32_t percent, int64_t begin_ns) {
  model_container(container)->percent = percent;
  for (int i = 0; i < kind->processes; i++) {
    jobs[i] = (struct job){.container = container, .most_ahead = kind->most_ahead, .by_kernel = kind->by_kernel};
    jobs[i].rank_count = 2 / kind->processes;
    for (int r = 0; r < jobs[i].rank_count; r++)
      jobs[i].ranks[r] = i + r;
    model_start(container, run_ranks, &jobs[i], begin_ns + i * MS);
  }
}

/* How many steps it makes in a second, and how long the longest of them takes; as far as it gets. */
struct speed {
  double per_s;
  int64_t longest_ns;
};

static struct speed speed_of(const struct job *job, int64_t until_ns) {
  int64_t since_ns = until_ns - job->last_step_ns, took_ns = until_ns - job->counted_from_ns;
  int64_t longest_ns = since_ns > job->longest_ns ? since_ns : job->longest_ns;
  if (job->steps <= WARM_UP)
    return (struct speed){0, longest_ns};
  return (struct speed){(double)(job->steps - WARM_UP) * S / (double)took_ns, longest_ns};
}

static struct speed run_alone(const struct kind *kind, uint32_t percent, unsigned seed) {
  struct job jobs[2];
  model_start_over(seed);
  start(kind, jobs, 0, percent, 0);
  int64_t until_ns = 0, most_ns = (STEPS + WARM_UP) * 12 * MS * 100 / percent * 3 / 2;
  while (jobs[0].steps < STEPS + WARM_UP && until_ns < most_ns)
    model_run(until_ns += 10 * MS);
  return speed_of(&jobs[0], until_ns);
}

/* No step is 20 times as long as the longest without a limit. */
static void check_collectives(void) {
  static const uint32_t percents[] = {80, 50, 30, 20, 10};
  for (int k = 0; k < COUNT(kinds); k++)
    for (unsigned seed = 1; seed <= 2; seed++) {
      struct speed unlimited = run_alone(&kinds[k], VGPU_NO_SM_LIMIT, seed);
      for (int p = 0; p < COUNT(percents); p++) {
        struct speed limited = run_alone(&kinds[k], percents[p], seed);
        double speed = 100 * limited.per_s / unlimited.per_s;
        double longest = (double)limited.longest_ns / (double)unlimited.longest_ns;
        row_unless(percents[p] == 10, speed >= kinds[k].part * percents[p] && speed <= percents[p] + 2 && longest <= 20,
                   "  %-36s seed %u at %2u: %6.2f %% of its speed, longest step %6.1f times", kinds[k].name, seed,
                   percents[p], speed, longest);
      }
    }
}

/* Beside another tenant of the same kind each makes at least half of the steps that are due, and none takes a second.
 */
static void check_collectives_of_two_tenants(void) {
  static const uint32_t percents[][2] = {{50, 50}, {30, 70}, {30, 30}};
  for (int k = 0; k < COUNT(kinds); k++)
    for (unsigned seed = 1; seed <= 2; seed++) {
      struct speed unlimited = run_alone(&kinds[k], VGPU_NO_SM_LIMIT, seed);
      for (int p = 0; p < COUNT(percents); p++) {
        struct job jobs[2][2];
        model_start_over(seed);
        for (int i = 0; i < 2; i++)
          start(&kinds[k], jobs[i], i, percents[p][i], i * 3 * MS);
        model_run(20 * S);
        for (int i = 0; i < 2; i++) {
          struct speed speed = speed_of(&jobs[i][0], 20 * S);
          double percent = 100 * speed.per_s / unlimited.per_s;
          row_unless(kinds[k].most_ahead > 0,
                     percent >= 0.5 * kinds[k].part / 0.9 * percents[p][i] && percent <= percents[p][i] + 2 &&
                         speed.longest_ns <= S,
                     "  %-36s seed %u at %u of %u and %u: %6.2f %% of its speed, longest step %6.1f ms", kinds[k].name,
                     seed, percents[p][i], percents[p][0], percents[p][1], percent, (double)speed.longest_ns / MS);
        }
      }
    }
}

/* Each kernel is a collective: one that waits for its turn on one GPU keeps the other one waiting. */
struct exchanges {
  int tenant;
  int finished;
  int64_t longest_ns;
};
#define MOST_EXCHANGES 130000

static void run_exchanges(struct model_process *process) {
  struct exchanges *exchanges = (struct exchanges *)model_argument(process);
  for (int first = exchanges->tenant;; first = 1 - first, exchanges->finished++) {
    int64_t began_ns = model_now_ns(process);
    int number = exchanges->tenant * MOST_EXCHANGES + exchanges->finished;
    model_launch_spin(process, first, number);
    model_launch_spin(process, 1 - first, number);
    model_synchronize(process, 0);
    model_synchronize(process, 1);
    int64_t took_ns = model_now_ns(process) - began_ns;
    exchanges->longest_ns = took_ns > exchanges->longest_ns ? took_ns : exchanges->longest_ns;
  }
}

/* Each has its half of the speed, as far as hand-overs leave it, and waits for a slice, but not for the patience with
 * work that never ends. */
static void check_exchanges(int first_seed, int last_seed) {
  struct exchanges alone = {0};
  model_start_over(1);
  model_container(0)->percent = VGPU_NO_SM_LIMIT;
  model_start(0, run_exchanges, &alone, 0);
  model_run(S);
  for (int seed = first_seed; seed <= last_seed; seed++) {
    struct exchanges tenants[2] = {{.tenant = 0}, {.tenant = 1}};
    double speed[2];
    model_start_over(seed);
    for (int i = 0; i < 2; i++) {
      model_container(i)->percent = 50;
      model_start(i, run_exchanges, &tenants[i], i * seed * 100 * US);
    }
    model_run(2 * S);
    for (int i = 0; i < 2; i++)
      speed[i] = 100.0 * tenants[i].finished / 2 / alone.finished;
    int64_t longest_ns = tenants[tenants[0].longest_ns < tenants[1].longest_ns].longest_ns;
    row(speed[0] >= 45 && speed[1] >= 45 && longest_ns < 80 * MS,
        "  seed %d: %.1f and %.1f %% of %d a second, %6.1f ms at most", seed, speed[0], speed[1], alone.finished,
        (double)longest_ns / MS);
  }
}

static void run_flat_out(struct model_process *process) {
  for (int gpu = *(const int *)model_argument(process);;)
    model_launch(process, gpu, 0, MS);
}

static void run_ahead(struct model_process *process) {
  for (int number = 0;; number++) {
    for (int gpu = 0; gpu < 2; gpu++)
      model_launch(process, gpu, 0, 50 * US);
    for (int gpu = 0; gpu < 2; gpu++)
      model_launch_spin(process, gpu, number);
  }
}

/* Beside a tenant on each GPU, which finds the GPU divided at times, and may not take that for a reason to have more.
 */
static void check_exchanges_beside_work(void) {
  static const uint32_t percents[][2] = {{80, 20}, {50, 50}};
  static const int gpus[] = {0, 1};
  for (int p = 0; p < COUNT(percents); p++)
    for (unsigned seed = 1; seed <= 2; seed++) {
      struct model_process *others[2];
      double shares[2];
      model_start_over(seed);
      model_container(0)->percent = percents[p][0];
      model_start(0, run_ahead, NULL, 0);
      for (int i = 0; i < 2; i++) {
        model_container(1 + i)->percent = percents[p][1];
        others[i] = model_start(1 + i, run_flat_out, &gpus[i], (i + 1) * 700 * US);
      }
      measure_shares(others, 2, S, 6 * S, shares);
      row_unless(true, shares[0] <= percents[p][1] + 1 && shares[1] <= percents[p][1] + 1,
                 "  at %u, seed %u: the others have %.2f and %.2f %% of %u", percents[p][0], seed, shares[0], shares[1],
                 percents[p][1]);
    }
}

/* ---- a spin that waits for another stream ------------------------------------------------------------------------ */

#define ROUNDS 50
#define MOST_HELD_NS (250 * MS)

static struct rounds {
  int done;
  int64_t ended_ns;
  int64_t launches_since_ns, longest_ns; /* of the launches that release */
} rounds;

struct behind {
  const char *name;
  int work_kernels;      /* of a millisecond, before the one that spins */
  int64_t most_pause_ns; /* of the host, until it launches what releases it */
  bool waits_for_stream;
  bool in_company;
};

static void note_release(int64_t now_ns) {
  int64_t took_ns = now_ns - rounds.launches_since_ns;
  if (rounds.launches_since_ns != 0 && took_ns > rounds.longest_ns)
    rounds.longest_ns = took_ns;
  rounds.launches_since_ns = 0;
}

static void run_rounds(struct model_process *process) {
  const struct behind *behind = model_argument(process);
  for (int i = 1; i <= ROUNDS; i++) {
    for (int k = 0; k < behind->work_kernels; k++)
      model_launch(process, 0, 0, MS);
    model_launch_kernel(process, &(const struct model_kernel){0, 0, 10 * US, 1, true, 0, i});
    model_think(process, model_random_ns(process, 0, behind->most_pause_ns));
    rounds.launches_since_ns = model_now_ns(process);
    model_launch_kernel(process, &(const struct model_kernel){0, 1, 10 * US, 2, true, i, 0});
    note_release(model_now_ns(process));
    if (behind->waits_for_stream)
      model_synchronize_stream(process, 0, 0);
    else
      model_synchronize(process, 0);
    rounds.done = i;
    rounds.ended_ns = model_now_ns(process);
  }
}

static const struct behind behinds[] = {
    {"at once", 5, 100 * US, false, false},
    {"some milliseconds later", 0, 20 * MS, false, false},
    {"up to 100 ms later", 0, 100 * MS, false, false},
    {"later, one stream waited for", 2, 20 * MS, true, false},
    {"later, in company", 2, 20 * MS, false, true},
};

/* The launch that releases it is held 250 ms at most, and so is the round's first one, beside what its work takes. That
 * takes its time all the same, but for what a bucket holds. */
static void check_spins_behind_another_stream(void) {
  static const uint32_t percents[] = {90, 80, 50, 20, 5};
  static const int first_gpu = 0;
  for (int b = 0; b < COUNT(behinds); b++)
    for (int p = 0; p < COUNT(percents); p++)
      for (unsigned seed = 1; seed <= 2; seed++) {
        int64_t works_ns = (behinds[b].work_kernels + 10) * MS + behinds[b].most_pause_ns / 2;
        int64_t round_ns = 2 * MOST_HELD_NS + works_ns * 100 / percents[p];
        rounds = (struct rounds){0};
        model_start_over(seed);
        model_container(0)->percent = percents[p];
        model_container(1)->percent = 50;
        model_start(0, run_rounds, &behinds[b], 0);
        if (behinds[b].in_company)
          model_start(1, run_flat_out, &first_gpu, 0);
        model_run(ROUNDS * round_ns);
        note_release(ROUNDS * round_ns);
        int64_t work_ns = ROUNDS * behinds[b].work_kernels * MS, least_ns = (work_ns - 25 * MS) * 100 / percents[p];
        row(rounds.done == ROUNDS && rounds.longest_ns <= MOST_HELD_NS && rounds.ended_ns >= least_ns,
            "  %-32s at %2u, seed %u: %2d rounds in %6.2f s, held %7.1f ms at most", behinds[b].name, percents[p], seed,
            rounds.done, (double)rounds.ended_ns / S, (double)rounds.longest_ns / MS);
      }
}

int main(int count, char **names) {
  cases_begin(count, names);
  CASE("collectives") check_collectives();
  CASE("collectives of two tenants") check_collectives_of_two_tenants();
  CASE("exchanges of two tenants") check_exchanges(1, 2);
  CASE("exchanges of two tenants, with more seeds") check_exchanges(3, 8);
  CASE("exchanges beside work") check_exchanges_beside_work();
  CASE("spins behind another stream") check_spins_behind_another_stream();
  return rows_end();
}
