/* The shares that programs get of a GPU under limits, alone and with others, on simulated time. */
#include "base/compiler.h"
#include "cases.h"
#include "check.h"
#include "gpu_model.h"

struct work {
  const char *name;
  int64_t kernel_ns;
  int kernels;
  int streams;
  bool synchronizes;
  int64_t think_ns;
};

/* A graph is one launch for what it contains. */
static const struct work works[] = {
    {"300 ms", 300 * MS, 1, 1, false, 0},
    {"5 ms", 5 * MS, 1, 1, false, 0},
    {"1 ms", MS, 1, 1, false, 0},
    {"50 us", 50 * US, 1, 1, false, 0},
    {"4 us", 4 * US, 1, 1, false, 0},
    {"graph of 100", 50 * US, 100, 1, false, 0},
    {"50 us + synchronise", 50 * US, 1, 1, true, 0},
    {"4 streams", 200 * US, 1, 4, false, 0},
    {"2 streams, slow host", 10 * US, 1, 2, false, 20 * US},
};
#define WORKS (int)(sizeof works / sizeof works[0])
static const struct work *const flat_out = &works[2];

static void run_work(struct model_process *process) {
  const struct work *work = model_argument(process);
  for (int i = 0;; i++) {
    model_launch(process, 0, i % work->streams, work->kernel_ns * work->kernels);
    if (work->synchronizes)
      model_synchronize(process, 0);
    if (work->think_ns > 0)
      model_think(process, work->think_ns);
  }
}

static struct model_process *tenant(int number, uint32_t percent, const struct work *work) {
  model_container(number)->percent = percent;
  return model_start(number, run_work, work, 0);
}

/* The work of each between two times, in percent of the GPU. */
static void measure(struct model_process **tenants, int count, int64_t from_ns, int64_t to_ns, double *shares) {
  int64_t before_ns[MODEL_PROCESSES];
  model_run(from_ns);
  for (int i = 0; i < count; i++)
    before_ns[i] = model_worked_ns(tenants[i]);
  model_run(to_ns);
  for (int i = 0; i < count; i++)
    shares[i] = 100.0 * (double)(model_worked_ns(tenants[i]) - before_ns[i]) / (double)(to_ns - from_ns);
}

static void check_together(int count, const uint32_t *percents, const double *expected, double tolerance,
                           double least_sum) {
  struct model_process *tenants[4];
  double shares[4], sum = 0, squares = 0;
  model_start_over(7);
  for (int i = 0; i < count; i++)
    tenants[i] = tenant(i, percents[i], flat_out);
  measure(tenants, count, S, 11 * S, shares);
  for (int i = 0; i < count; i++) {
    printf("%u of %d tenants: %.2f %%\n", percents[i], count, shares[i]);
    CHECK(shares[i] > expected[i] - tolerance && shares[i] < expected[i] + tolerance, "tenant %d: %.2f %%", i,
          shares[i]);
    sum += shares[i];
    squares += shares[i] * shares[i] / (expected[i] * expected[i]);
  }
  double fractions = 0;
  for (int i = 0; i < count; i++)
    fractions += shares[i] / expected[i];
  double jain = fractions * fractions / (count * squares);
  printf("  together %.2f %%, Jain %.5f\n", sum, jain);
  CHECK(sum > least_sum, "together %.2f %%", sum);
  CHECK(jain >= 0.999, "Jain %.5f", jain);
}

#define TOGETHER(least_sum, tolerance, ...)                                                                            \
  do {                                                                                                                 \
    const uint32_t percents[] = {__VA_ARGS__};                                                                         \
    const double expected[] = {__VA_ARGS__};                                                                           \
    check_together((int)(sizeof percents / sizeof percents[0]), percents, expected, tolerance, least_sum);             \
  } while (0)

static void check_pairs(void) {
  TOGETHER(97, 1, 50, 50);
  TOGETHER(97, 1, 30, 70);
  TOGETHER(58, 1, 20, 40);
  TOGETHER(97, 1, 10, 90);
  TOGETHER(97, 1, 25, 25, 25, 25);
}

/* Whenever the second one begins, also where one and the same was the first to see new tokens, again and again. */
static void check_two_processes_of_one_container(void) {
  static const struct work kinds[] = {
      {"50 us", 50 * US, 1, 1, false, 0}, {"2 ms", 2 * MS, 1, 1, false, 0}, {"10 ms", 10 * MS, 1, 1, false, 0}};
  static const uint32_t percents[] = {40, 60, 80};
  for (int i = 0; i < 9; i++)
    for (int begins = 0; begins < 5; begins++) {
      const struct work *work = &kinds[i % 3];
      uint32_t percent = percents[i / 3];
      double shares[2], at_first[2];
      model_start_over(3 + (unsigned)begins);
      model_container(0)->percent = percent;
      struct model_process *both[] = {model_start(0, run_work, work, 0),
                                      model_start(0, run_work, work, begins * 3900 * US)};
      measure(both, 2, 100 * MS, 700 * MS, at_first);
      measure(both, 2, 700 * MS, 2 * S, shares);
      double sum = shares[0] + shares[1], less = shares[0] < shares[1] ? shares[0] : shares[1];
      printf(
          "two processes in one container at %u, %s, the second begins at %4.1f ms: %.2f + %.2f %%, %.2f %% at first\n",
          percent, work->name, begins * 3.9, shares[0], shares[1], at_first[0] + at_first[1]);
      CHECK(less > 0.85 * (sum - less), "%.2f and %.2f %%", shares[0], shares[1]);
      CHECK(sum > percent - 1.2 && sum < percent + 1, "%.2f %%", sum);
      CHECK(at_first[0] + at_first[1] < percent + 6, "%.2f %%", at_first[0] + at_first[1]);
    }
}

/* The process that waits comes to the gate more often, and mostly finds it open. */
static void check_one_of_two_processes_waits_for_each_launch(void) {
  static const struct work kinds[] = {{"flat out", 2 * MS, 1, 1, false, 0}, {"waiting", 2 * MS, 1, 1, true, 0}};
  double shares[2];
  model_start_over(3);
  struct model_process *both[] = {tenant(0, 80, &kinds[0]), tenant(0, 80, &kinds[1])};
  measure(both, 2, S, 6 * S, shares);
  printf("two processes in one container at 80, one waits for each launch: %.2f + %.2f %%\n", shares[0], shares[1]);
  CHECK(shares[0] > 38 && shares[1] > 38, "%.2f and %.2f %%", shares[0], shares[1]);
}

/* The work of one is measured when it launches again, and by then the other has been charged for what came later. */
static void run_polling(struct model_process *process) {
  const struct work *work = model_argument(process);
  for (;;) {
    for (int i = 0; i < work->kernels; i++)
      model_launch(process, 0, 0, work->kernel_ns);
    model_poll(process, 0);
    model_think(process, work->think_ns);
  }
}

static void check_processes_that_poll(void) {
  static const struct work kinds[] = {{"50 us", 50 * US, 40, 1, false, MS},
                                      {"200 us", 200 * US, 40, 1, false, 5 * MS},
                                      {"1 ms", MS, 10, 1, false, 5 * MS},
                                      {"1 ms", MS, 20, 1, false, 50 * MS}};
  for (int k = 0; k < 4; k++)
    for (int count = 2; count <= 4; count *= 2) {
      struct model_process *tenants[4];
      double shares[4], sum = 0;
      model_start_over(21);
      model_container(0)->percent = 50;
      for (int i = 0; i < count; i++)
        tenants[i] = model_start(0, run_polling, &kinds[k], i * 1300 * US);
      measure(tenants, count, S, 6 * S, shares);
      for (int i = 0; i < count; i++)
        sum += shares[i];
      printf("%d processes in one container at 50 that poll for %d of %s: %.2f %%\n", count, kinds[k].kernels,
             kinds[k].name, sum);
      /* Four of the last kind all think at times, for longer than tokens are kept: with 40 ms they would get 49.7. */
      CHECK(sum > (k == 3 && count == 4 ? 47 : 48.5) && sum < 51, "%.2f %%", sum);
    }
}

/* ---- threads of one process -------------------------------------------------------------------------------------- */

#define THREADS 32

struct thread {
  int64_t kernel_ns;
  int streams;
  bool waits; /* for each launch */
};

struct threads {
  const char *name;
  uint32_t percent;
  int count;
  struct thread first, others;
  double least_part; /* of what another one has */
  int64_t longest_ns;
};

static struct thread threads[THREADS];
static int64_t launched_ns[THREADS]; /* what they have launched takes so long */

static void run_thread(struct model_process *process) {
  const struct thread *thread = model_argument(process);
  int number = (int)(thread - threads), first_stream = number * (MODEL_STREAMS / THREADS);
  for (int i = 0;; i = (i + 1) % thread->streams) {
    model_launch(process, 0, first_stream + i, thread->kernel_ns);
    launched_ns[number] += thread->kernel_ns;
    if (thread->waits)
      model_synchronize_stream(process, 0, first_stream + i);
  }
}

/* From when they have paid for their first launches, of which nothing was known. */
#define FROM_NS (8 * S)
#define FOR_NS (6 * S)

static void check_threads(const struct threads *its) {
  struct model_process *processes[THREADS];
  int64_t longest_ns = 0, least_ns = INT64_MAX, most_ns = 0, sum_ns = 0;
  model_start_over(3);
  model_container(0)->percent = its->percent;
  for (int i = 0; i < its->count; i++) {
    threads[i] = i == 0 ? its->first : its->others;
    processes[i] =
        i == 0 ? model_start(0, run_thread, &threads[i], 0) : model_start_thread(processes[0], run_thread, &threads[i]);
  }
  model_run(FROM_NS);
  for (int i = 0; i < its->count; i++) {
    launched_ns[i] = 0;
    model_forget_stalls(processes[i]);
  }
  model_run(FROM_NS + FOR_NS);
  for (int i = 0; i < its->count; i++) {
    longest_ns = max(longest_ns, model_longest_launch_ns(processes[i]));
    least_ns = min(least_ns, launched_ns[i]);
    most_ns = max(most_ns, launched_ns[i]);
    sum_ns += launched_ns[i];
  }
  double least = 100.0 * (double)least_ns / FOR_NS, most = 100.0 * (double)most_ns / FOR_NS;
  double share = 100.0 * (double)sum_ns / FOR_NS;
  printf("%s at %u: %.2f to %.2f %%, together %.2f, launches of %.1f ms\n", its->name, its->percent, least, most, share,
         (double)longest_ns / 1e6);
  CHECK(least > its->least_part * most, "%s: %.2f and %.2f %%", its->name, least, most);
  CHECK(longest_ns < its->longest_ns, "%s: a launch took %lld ms", its->name, (long long)longest_ns / MS);
  CHECK(share > its->percent - 1 && share < its->percent + 1, "%s: %.2f %%", its->name, share);
}

/* The one that waits comes to the gate when it is done, and not when there are tokens. */
static void check_one_of_two_threads_waits_for_each_launch(void) {
  static const struct threads cases[] = {
      {"50 us", 20, 2, {50 * US, 1, false}, {50 * US, 1, true}, 0.8, 60 * MS},
      {"50 us", 90, 2, {50 * US, 1, false}, {50 * US, 1, true}, 0.8, 60 * MS},
      {"500 us", 20, 2, {500 * US, 1, false}, {500 * US, 1, true}, 0.8, 60 * MS},
      {"500 us", 80, 2, {500 * US, 1, false}, {500 * US, 1, true}, 0.8, 60 * MS},
      {"2 ms", 50, 2, {2 * MS, 1, false}, {2 * MS, 1, true}, 0.9, 60 * MS},
      {"2 ms", 90, 2, {2 * MS, 1, false}, {2 * MS, 1, true}, 0.9, 60 * MS},
      {"10 ms", 95, 2, {10 * MS, 1, false}, {10 * MS, 1, true}, 0.9, 60 * MS},
      {"1 ms beside 10 ms that are waited for", 50, 2, {MS, 1, false}, {10 * MS, 1, true}, 0.8, 80 * MS},
      {"10 ms beside 1 ms that is waited for", 90, 2, {10 * MS, 1, false}, {MS, 1, true}, 0.7, 80 * MS},
  };
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
    check_threads(&cases[i]);
}

/* Even would be launches of 0.4 s, but of 32 threads 0.32, and of 4 less than 10 ms. */
static void check_many_threads(void) {
  static const struct threads cases[] = {
      {"8 threads of 10 ms", 20, 8, {10 * MS, 1, false}, {10 * MS, 1, false}, 0.9, 600 * MS},
      {"8 threads that wait for 10 ms", 20, 8, {10 * MS, 1, true}, {10 * MS, 1, true}, 0.9, 600 * MS},
      {"32 threads of 2 ms", 20, 32, {2 * MS, 1, false}, {2 * MS, 1, false}, 0.7, 600 * MS},
      {"32 threads that wait for 2 ms", 20, 32, {2 * MS, 1, true}, {2 * MS, 1, true}, 0.7, 600 * MS},
      {"4 threads of 50 us", 50, 4, {50 * US, 1, false}, {50 * US, 1, false}, 0.9, 60 * MS},
  };
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
    check_threads(&cases[i]);
}

static void check_threads_with_many_streams(void) {
  static const struct threads cases[] = {
      {"a thread with one stream and one with 4", 50, 2, {MS, 1, false}, {MS, 4, false}, 0.9, 60 * MS},
      {"the first one waits", 50, 2, {MS, 1, true}, {MS, 4, false}, 0.9, 60 * MS},
      {"the other one waits", 90, 2, {MS, 1, false}, {MS, 4, true}, 0.9, 60 * MS},
  };
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
    check_threads(&cases[i]);
}

/* ---- those that disturb ------------------------------------------------------------------------------------------ */

enum fault { KILLED, STOPPED, ENDLESS, ENDLESS_AND_WAITS };

static void run_endless(struct model_process *process) {
  while (model_now_ns(process) < 2 * S)
    model_launch(process, 0, 0, MS);
  do
    model_launch(process, 0, 0, MODEL_ENDLESS_NS);
  while (*(const enum fault *)model_argument(process) == ENDLESS);
  model_synchronize(process, 0);
}

static void check_disturbance(enum fault fault) {
  static const char *const names[] = {"killed", "stopped", "endless", "endless, and waits for it"};
  struct model_process *other;
  double share;
  model_start_over(5);
  other = tenant(0, 50, flat_out);
  struct model_process *disturber;
  bool endless = fault == ENDLESS || fault == ENDLESS_AND_WAITS;
  if (endless) {
    model_container(1)->percent = 50;
    disturber = model_start(1, run_endless, &fault, 0);
  } else
    disturber = tenant(1, 50, flat_out);
  model_run(2 * S);
  int64_t at_ns = 2 * S;
  while (!endless && !model_holds_turn(disturber))
    model_run(at_ns += 100 * US);
  model_forget_stalls(other);
  if (fault == KILLED)
    model_kill(disturber);
  if (fault == STOPPED)
    model_stop(disturber, 60 * S);
  model_run(at_ns + S);
  int64_t stall_ns = model_longest_launch_ns(other);
  model_forget_stalls(other);
  measure(&other, 1, at_ns + S, at_ns + 6 * S, &share);
  printf("%s: stalled %.1f ms, then %.1f ms at most, %.2f %%\n", names[fault], (double)stall_ns / 1e6,
         (double)model_longest_launch_ns(other) / 1e6, share);
  CHECK(stall_ns < 115 * MS, "%s: stalled %lld ms", names[fault], (long long)(stall_ns / MS));
  double least = endless ? 25 : 49; /* the GPU mixes the two, and what is measured is the time of both */
  CHECK(share > least && share < 51, "%s: %.2f %% afterwards", names[fault], share);
}

/* Launches a kernel that takes so long, and waits for it, in a process that was there before. */
static void run_once(struct model_process *process) {
  model_launch(process, 0, 0, *(const int64_t *)model_argument(process));
  model_synchronize(process, 0);
  model_think(process, 1000 * S);
}

static double beside_silent(int64_t silent_kernel_ns, const struct work *work, uint32_t percent) {
  double share;
  model_start_over(6);
  model_container(0)->percent = 50;
  model_start(0, run_once, &silent_kernel_ns, 0);
  model_container(1)->percent = percent;
  struct model_process *process = model_start(1, run_work, work, S);
  measure(&process, 1, 2 * S, 5 * S, &share);
  return share;
}

/* Whether a silent neighbour uses the GPU, nobody says: the limit holds beside one that does not, and beside one that
 * does a due half is what the GPU's own time-slicing leaves. */
static void check_beside_silent_ones(void) {
  static const struct work *const kinds[] = {&works[1], &works[3]};
  for (int i = 0; i < 2; i++) {
    double possible = beside_silent(MODEL_ENDLESS_NS, kinds[i], VGPU_NO_SM_LIMIT);
    double endless = beside_silent(MODEL_ENDLESS_NS, kinds[i], 50), idle = beside_silent(MS, kinds[i], 50);
    printf("%s beside a silent one: %.2f %% of %.2f %% if that has a kernel that never ends, else %.2f %%\n",
           kinds[i]->name, endless, possible, idle);
    CHECK(endless > possible - 3, "%.2f %% of %.2f %%", endless, possible);
    CHECK(idle > 49 && idle < 51, "%.2f %%", idle);
  }
}

/* A kernel of a new name now and then, waited for: its lease ends before it does. */
static void run_new_names(struct model_process *process) {
  for (uint64_t work = 1;; work++) {
    model_launch_as(process, 0, 0, 30 * MS, work);
    model_synchronize(process, 0);
    model_think(process, 200 * MS);
  }
}

static void check_beside_new_names(void) {
  static const uint32_t percents[] = {10, 20, 50};
  for (int i = 0; i < 3; i++) {
    double share;
    model_start_over(6);
    model_container(0)->percent = percents[i];
    model_start(0, run_new_names, NULL, 0);
    model_container(1)->percent = 50;
    struct model_process *other = model_start(1, run_work, flat_out, 700 * US);
    measure(&other, 1, S, 11 * S, &share);
    printf("flat out beside new names at %u: %.2f %%\n", percents[i], share);
    CHECK(share > 43 && share < 51, "%.2f %%", share);
  }
}

/* Runs processes of a single kernel. Where the GPU was not free, nothing was recorded before it by which its length
 * could be told. */
static void run_short_lives(struct model_process *process) {
  for (;;) {
    model_think(process, 20 * MS);
    model_launch(process, 0, 0, 100 * MS);
    model_synchronize(process, 0);
    model_begin_anew(process);
  }
}

static void check_beside_short_lives(void) {
  struct model_process *processes[5];
  double shares[5], together = 0;
  model_start_over(6);
  model_container(0)->percent = model_container(1)->percent = 50;
  for (int i = 0; i < 4; i++)
    processes[i] = model_start(0, run_short_lives, NULL, i * 300 * US);
  processes[4] = model_start(1, run_work, flat_out, 700 * US);
  measure(processes, 5, 2 * S, 13 * S, shares);
  for (int i = 0; i < 4; i++)
    together += shares[i];
  printf("flat out beside processes of one kernel each: %.2f and %.2f %%\n", shares[4], together);
  CHECK(together < 51, "%.2f %%", together);
  CHECK(shares[4] > 43 && shares[4] < 51, "%.2f %%", shares[4]);
}

/* ---- settling ---------------------------------------------------------------------------------------------------- */

static void check_settling(void) {
  double share;
  model_start_over(9);
  model_container(0)->percent = 50;
  struct model_process *process = model_start(0, run_work, flat_out, 0);
  measure(&process, 1, 500 * MS, 1500 * MS, &share);
  CHECK(share > 49 && share < 51, "from idle: %.2f %%", share);
  model_run(3 * S);
  model_container(0)->percent = 20;
  measure(&process, 1, 3500 * MS, 4500 * MS, &share);
  CHECK(share > 19 && share < 21, "after an update to 20: %.2f %%", share);
  model_container(0)->percent = 80;
  measure(&process, 1, 5 * S, 6 * S, &share);
  CHECK(share > 79 && share < 81, "after an update to 80: %.2f %%", share);
}

/* ---- policies ---------------------------------------------------------------------------------------------------- */

static void check_policy(const char *name, uint32_t first_percent, uint32_t first_policy, uint32_t second_percent,
                         uint32_t second_policy, double first, double second) {
  double shares[2];
  model_start_over(13);
  model_container(0)->policy = first_policy;
  model_container(1)->policy = second_policy;
  struct model_process *both[] = {tenant(0, first_percent, flat_out), tenant(1, second_percent, flat_out)};
  measure(both, 2, S, 11 * S, shares);
  printf("%s: %.2f and %.2f %%\n", name, shares[0], shares[1]);
  CHECK(shares[0] > first - 2 && shares[0] < first + 2 && shares[1] > second - 2 && shares[1] < second + 2,
        "%s: %.2f, %.2f", name, shares[0], shares[1]);
}

static void check_policies(void) {
  check_policy("no limits", 100, VGPU_SM_HARD, 100, VGPU_SM_HARD, 50, 50);
  check_policy("30 and no limit", 30, VGPU_SM_HARD, 100, VGPU_SM_HARD, 30, 70);
  check_policy("bursts of 20 and 40", 20, VGPU_SM_BURST, 40, VGPU_SM_BURST, 100.0 / 3, 200.0 / 3);
  check_policy("burst of 20 and 40", 20, VGPU_SM_BURST, 40, VGPU_SM_HARD, 60, 40);
}

/* A program that uses a twentieth of the GPU, in short bits, leaves the rest to another without a limit. */
static void check_what_is_not_wanted_is_left(void) {
  static const struct work light = {"light", 500 * US, 1, 1, true, 9500 * US};
  double shares[2];
  model_start_over(15);
  struct model_process *both[] = {tenant(0, VGPU_NO_SM_LIMIT, flat_out), tenant(1, VGPU_NO_SM_LIMIT, &light)};
  measure(both, 2, S, 11 * S, shares);
  printf("flat out beside a light one: %.2f and %.2f %%\n", shares[0], shares[1]);
  CHECK(shares[0] > 88 && shares[1] > 2, "%.2f and %.2f %%", shares[0], shares[1]);
}

static void check_priorities(void) {
  double shares[2];
  model_start_over(17);
  model_container(1)->priority = VGPU_PRIORITY_LOW;
  struct model_process *both[] = {tenant(0, VGPU_NO_SM_LIMIT, flat_out), tenant(1, VGPU_NO_SM_LIMIT, flat_out)};
  model_run(4 * S); /* what each had launched before it found the other is done */
  model_forget_stalls(both[1]);
  measure(both, 2, 4 * S, 14 * S, shares);
  printf("high and low: %.2f and %.2f %%\n", shares[0], shares[1]);
  double slices = 100.0 * TURNS_SLICE_NS / (TURNS_SLICE_NS + TURNS_LONGEST_NS); /* one, whenever it has starved */
  CHECK(shares[0] > 97 - slices && shares[1] > slices - 3 && shares[1] < slices + 3, "%.2f and %.2f %%", shares[0],
        shares[1]);
  CHECK(model_longest_launch_ns(both[1]) < 300 * MS, "the low one waited %lld ms",
        (long long)model_longest_launch_ns(both[1]) / MS);
}

/* Each has launched a thousand kernels, of which nothing can be taken back, before it finds the other. */
static void check_company_of_two_without_limits(void) {
  double shares[2];
  model_start_over(16);
  struct model_process *both[] = {tenant(0, VGPU_NO_SM_LIMIT, flat_out), tenant(1, VGPU_NO_SM_LIMIT, flat_out)};
  measure(both, 2, 3 * S, 5 * S, shares);
  printf("without limits, when what was launched before is done: %.2f and %.2f %%\n", shares[0], shares[1]);
  CHECK(shares[0] > 49 && shares[1] > 49, "%.2f and %.2f %%", shares[0], shares[1]);
}

/* Stopped while its work is on the GPU, and then not stuck for ever. */
static void check_who_was_stopped_goes_on(void) {
  static const struct work long_kernels = {"10 ms", 10 * MS, 1, 1, false, 0};
  double shares[2];
  model_start_over(18);
  struct model_process *both[] = {tenant(0, 50, flat_out), tenant(1, 50, &long_kernels)};
  model_run(2 * S);
  while (!model_holds_turn(both[1]))
    model_run(model_now_ns(both[0]) + 100 * US);
  model_stop(both[1], model_now_ns(both[0]) + S);
  measure(&both[0], 1, 2200 * MS, 3000 * MS, shares);
  CHECK(shares[0] > 48 && shares[0] < 52, "beside one that is stopped: %.2f %%", shares[0]);
  measure(both, 2, 4 * S, 10 * S, shares);
  printf("beside one that had been stopped: %.2f and %.2f %%\n", shares[0], shares[1]);
  CHECK(shares[0] > 49 && shares[0] < 51 && shares[1] > 47, "%.2f and %.2f %%", shares[0], shares[1]);
}

/* The process pays for each in advance, and has most of that back at once: else all of its container would wait for 50
 * ms of tokens each time. */
static void launch_new_names(struct model_process *process) {
  for (uint64_t work = 1;; work++) {
    model_launch_as(process, 0, 0, 50 * US, work);
    model_synchronize(process, 0);
    model_think(process, *(const int64_t *)model_argument(process));
  }
}

static void check_short_work_of_new_names(void) {
  static const int64_t thinks_ns[] = {100 * US, 200 * MS};
  double share;
  model_start_over(22);
  model_container(0)->percent = 50;
  struct model_process *alone = model_start(0, launch_new_names, &thinks_ns[0], 0);
  measure(&alone, 1, 0, 100 * MS, &share);
  printf("50 us of new names, each waited for: %.2f %%\n", share);
  CHECK(share > 25, "%.2f %%", share);
  model_start_over(22);
  struct model_process *sibling = tenant(0, 20, flat_out);
  model_start(0, launch_new_names, &thinks_ns[1], 0);
  measure(&sibling, 1, 2 * S, 12 * S, &share);
  printf("beside 50 us of a new name each 200 ms in its container, at 20: %.2f %%\n", share);
  CHECK(share > 19, "%.2f %%", share);
}

/* The host works beside a copy and a kernel, and then waits: its time is not the kernel's. */
static void run_behind_copies(struct model_process *process) {
  for (;;) {
    model_copy(process, 0, 0, 200 * US);
    model_launch(process, 0, 0, MS);
    model_think(process, 20 * MS);
    model_synchronize_stream(process, 0, 0);
  }
}

static void check_behind_copies(void) {
  double share;
  model_start_over(23);
  model_container(0)->percent = 10;
  struct model_process *process = model_start(0, run_behind_copies, NULL, 0);
  measure(&process, 1, 0, 2 * S, &share);
  double charged = 100.0 * (double)model_container(0)->device[0].busy_ns / (2 * S);
  printf("kernels of 1 ms behind copies, each 20 ms, at 10: %.2f %%, charged %.2f\n", share, charged);
  CHECK(share > 5.5 && charged > 4.5 && charged < 5.5, "%.2f %%, charged %.2f", share, charged);
}

/* All launches that are measured alone are behind copies, so that none of them tells the time of the others. */
static void run_samples_behind_copies(struct model_process *process) {
  for (int i = 0;; i++) {
    if (i == 0 || i % 16 == 1)
      model_copy(process, 0, 0, 7 * MS);
    model_launch(process, 0, 0, 5 * MS);
    model_synchronize_stream(process, 0, 0);
  }
}

static void check_samples_behind_copies(void) {
  double share;
  model_start_over(3);
  struct model_process *process = model_start(0, run_samples_behind_copies, NULL, 0);
  model_container(0)->percent = 20;
  measure(&process, 1, S, 11 * S, &share);
  printf("kernels of 5 ms, behind copies where they are measured alone, at 20: %.2f %%\n", share);
  CHECK(share > 20.75 && share < 22.75, "%.2f %%, 1.75 of them copies", share);
}

/* No copy is charged, and none teaches what the kernels behind it cost. */
static void run_each_behind_a_copy(struct model_process *process) {
  const int *kernels = model_argument(process);
  for (;;) {
    model_copy(process, 0, 0, 500 * US);
    for (int i = 0; i < *kernels; i++)
      model_launch(process, 0, 0, 50 * US);
    model_synchronize_stream(process, 0, 0);
  }
}

static void check_each_behind_a_copy(int kernels, uint32_t percent, double least) {
  double share;
  model_start_over(3);
  struct model_process *process = model_start(0, run_each_behind_a_copy, &kernels, 0);
  model_container(0)->percent = percent;
  measure(&process, 1, S, 11 * S, &share);
  double kernel_share = share * kernels / (10 + kernels);
  printf("%d kernels of 50 us behind copies of 500, at %u: %.2f %%\n", kernels, percent, kernel_share);
  CHECK(kernel_share > least && kernel_share < percent, "%.2f %%", kernel_share);
}

/* A batch that cannot be measured is charged by when its end was seen. */
static void check_without_a_clock(void) {
  double share;
  model_start_over(3);
  model_lose_clock();
  struct model_process *process = tenant(0, 20, flat_out);
  measure(&process, 1, S, 11 * S, &share);
  printf("no two markers can be compared, at 20: %.2f %%\n", share);
  CHECK(share > 15 && share < 20.5, "%.2f %%", share);
}

static void check_pause(void) {
  double share;
  model_start_over(19);
  struct model_process *both[] = {tenant(0, 50, flat_out), tenant(1, VGPU_NO_SM_LIMIT, flat_out)};
  model_run(S);
  model_container(0)->paused = true;
  measure(both, 1, 1100 * MS, 2 * S, &share);
  CHECK(share == 0, "%.2f %% while paused", share);
  measure(&both[1], 1, 3 * S, 4 * S, &share);
  CHECK(share > 97, "%.2f %% for the other", share);
  model_container(0)->paused = false;
  measure(both, 1, 8 * S, 10 * S, &share); /* after what the other had launched while nobody measured it */
  CHECK(share > 48 && share < 52, "%.2f %% afterwards", share);
}

int main(int count, char **names) {
  cases_begin(count, names);
  CASE("settling") check_settling();
  CASE("two processes of one container") check_two_processes_of_one_container();
  CASE("one of two processes waits for each launch") check_one_of_two_processes_waits_for_each_launch();
  CASE("processes that poll") check_processes_that_poll();
  CASE("one of two threads waits for each launch") check_one_of_two_threads_waits_for_each_launch();
  CASE("many threads") check_many_threads();
  CASE("threads with many streams") check_threads_with_many_streams();
  CASE("pairs") check_pairs();
  CASE("policies") check_policies();
  CASE("what is not wanted is left") check_what_is_not_wanted_is_left();
  CASE("priorities") check_priorities();
  CASE("pause") check_pause();
  CASE("disturbance: killed") check_disturbance(KILLED);
  CASE("disturbance: stopped") check_disturbance(STOPPED);
  CASE("disturbance: endless") check_disturbance(ENDLESS);
  CASE("disturbance: endless and waits for it") check_disturbance(ENDLESS_AND_WAITS);
  CASE("beside silent ones") check_beside_silent_ones();
  CASE("beside new names") check_beside_new_names();
  CASE("beside short lives") check_beside_short_lives();
  CASE("company of two without limits") check_company_of_two_without_limits();
  CASE("short work of new names") check_short_work_of_new_names();
  CASE("behind copies") check_behind_copies();
  CASE("samples behind copies") check_samples_behind_copies();
  CASE("without a clock") check_without_a_clock();
  CASE("each behind a copy") {
    check_each_behind_a_copy(1, 10, 8.5); /* 9.0 without a limit */
    check_each_behind_a_copy(1, 20, 8.5);
    check_each_behind_a_copy(20, 50, 45);
  }
  CASE("who was stopped goes on") check_who_was_stopped_goes_on();
  return cases_end();
}
