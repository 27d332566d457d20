/* Tenants that share a GPU: what each has of it, how long it waits, and what others can do to it. */
#include "base/compiler.h"
#include "check.h"
#include "rows.h"

struct program {
  int64_t kernel_ns;
  int kernels; /* until it waits, or thinks */
  bool waits;
  int64_t think_ns;
};

static void run_program(struct model_process *process) {
  const struct program *program = model_argument(process);
  for (;;) {
    for (int i = 0; i < program->kernels; i++)
      model_launch(process, 0, 0, program->kernel_ns);
    if (program->waits)
      model_synchronize(process, 0);
    model_think(process, program->think_ns);
  }
}

static const struct program us_50 = {50 * US, 1, false, 0}, ms_1 = {MS, 1, false, 0}, ms_5 = {5 * MS, 1, false, 0};

static struct model_process *tenant(int number, uint32_t percent, const struct program *program) {
  model_container(number)->percent = percent;
  return model_start(number, run_program, program, number * 700 * US);
}

#define MOST_TENANTS 4

/* ---- flat out -----------------------------------------------------------------------------------------------------
 */

/* Each within a point of its limit, 97 % of their limits together, and by Jain's index 0.999 of what is fair. */
static void check_flat_out(void) {
  static const uint32_t limits[][MOST_TENANTS] = {
      {50, 50}, {30, 70}, {20, 80}, {10, 90}, {20, 40}, {33, 33, 34}, {20, 30, 50}, {25, 25, 25, 25}, {10, 20, 30, 40}};
  static const struct {
    const char *name;
    const struct program *programs[2]; /* every other one's */
  } kinds[] = {{"50 us", {&us_50, &us_50}}, {"1 ms", {&ms_1, &ms_1}}, {"1 ms and 50 us", {&ms_1, &us_50}}};
  for (int k = 0; k < COUNT(kinds); k++)
    for (int l = 0; l < COUNT(limits); l++) {
      struct model_process *tenants[MOST_TENANTS];
      double shares[MOST_TENANTS], sum = 0, due = 0, parts = 0, squares = 0;
      int count = 0;
      bool holds = true;
      model_start_over((unsigned)l + 1);
      for (; count < MOST_TENANTS && limits[l][count] > 0; count++)
        tenants[count] = tenant(count, limits[l][count], kinds[k].programs[count % 2]);
      measure_shares(tenants, count, S, 21 * S, shares);
      printf("  %-16s", kinds[k].name);
      for (int i = 0; i < count; i++) {
        double part = shares[i] / limits[l][i];
        holds &= is_within(shares[i], limits[l][i], 1);
        sum += shares[i];
        due += limits[l][i];
        parts += part;
        squares += part * part;
        printf("%s%.2f of %u", i > 0 ? ", " : "", shares[i], limits[l][i]);
      }
      double jain = parts * parts / (count * squares);
      row(holds && sum >= 0.97 * due && jain >= 0.999, "; together %.2f %%, Jain %.5f", sum, jain);
    }
}

/* Within two points of their limits, over so long that one kernel is a small part of it. */
static void check_long_kernels_beside_short_ones(void) {
  static const int64_t lengths_ns[] = {30 * MS, 100 * MS, 200 * MS};
  static const uint32_t limits[][2] = {{20, 80}, {30, 70}, {50, 50}};
  for (int n = 0; n < COUNT(lengths_ns); n++)
    for (int l = 0; l < COUNT(limits); l++)
      for (int waits = 0; waits < 2; waits++) {
        struct program program = {lengths_ns[n], 1, waits, 0};
        double shares[2];
        model_start_over(1);
        struct model_process *tenants[] = {tenant(0, limits[l][0], &program), tenant(1, limits[l][1], &us_50)};
        measure_shares(tenants, 2, 2 * S, 62 * S, shares);
        bool is_open = !waits && lengths_ns[n] > 100 * MS;
        row_unless(is_open, is_within(shares[0], limits[l][0], 2) && is_within(shares[1], limits[l][1], 2),
                   "  %3lld ms%s at %u beside 50 us at %u: %6.2f and %6.2f %%", (long long)(lengths_ns[n] / MS),
                   waits ? ", waited for," : "", limits[l][0], limits[l][1], shares[0], shares[1]);
      }
}

/* ---- priority -----------------------------------------------------------------------------------------------------
 */

#define REQUESTS 500
#define WARM_UP_NS                                                                                                     \
  (10 * S) /* until what the other had launched before it found us, while nobody measured it, is done */
#define REQUEST_NS (2 * MS)
#define REQUEST_EVERY_NS (20 * MS)

static struct requests {
  int kernels;
  int64_t took_ns[REQUESTS];
  int count;
} requests;

/* A request comes every 20 ms, but not by the clock of those beside it. */
static void run_requests(struct model_process *process) {
  model_think(process, S);
  int64_t first_ns = model_now_ns(process) + WARM_UP_NS;
  while (model_now_ns(process) < first_ns) {
    model_launch(process, 0, 0, REQUEST_NS);
    model_synchronize(process, 0);
    model_think(process, REQUEST_EVERY_NS - REQUEST_NS);
  }
  for (; requests.count < REQUESTS; requests.count++) {
    int64_t comes_ns = first_ns + requests.count * REQUEST_EVERY_NS + model_random_ns(process, 0, 5 * MS);
    if (comes_ns > model_now_ns(process))
      model_think(process, comes_ns - model_now_ns(process));
    for (int i = 0; i < requests.kernels; i++)
      model_launch(process, 0, 0, REQUEST_NS / requests.kernels);
    model_synchronize(process, 0);
    requests.took_ns[requests.count] = model_now_ns(process) - comes_ns;
  }
}

static int by_length(const void *a, const void *b) {
  int64_t first = *(const int64_t *)a, second = *(const int64_t *)b;
  return (first > second) - (first < second);
}

#define REQUESTS_NS (11 * S + (REQUESTS + 100) * REQUEST_EVERY_NS)

/* The others' share while it works; 0 without others. */
static double run_requests_beside(const struct program *training, uint32_t policy, int kernels, unsigned seed,
                                  double *requests_share) {
  requests = (struct requests){.kernels = kernels};
  model_start_over(seed);
  model_set_wake_up_slowdown(0, 1); /* a host that waits for a request is not slowed down */
  model_container(0)->percent = model_container(1)->percent = VGPU_NO_SM_LIMIT;
  model_container(0)->policy = model_container(1)->policy = policy;
  model_container(1)->priority = VGPU_PRIORITY_LOW;
  struct model_process *process = model_start(0, run_requests, NULL, 0);
  struct model_process *other = training != NULL ? model_start(1, run_program, training, 3 * MS) : NULL;
  int64_t from_ns = 12 * S, to_ns = 11 * S + REQUESTS * REQUEST_EVERY_NS;
  double shares[2] = {0};
  measure_shares((struct model_process *[]){process, other}, other != NULL ? 2 : 1, from_ns, to_ns, shares);
  model_run(REQUESTS_NS);
  qsort(requests.took_ns, (size_t)requests.count, sizeof *requests.took_ns, by_length);
  *requests_share = shares[0];
  return shares[1];
}

static double percentile_ms(int percent) {
  return requests.count > 0 ? (double)requests.took_ns[(requests.count - 1) * percent / 100] / MS : 0;
}

/* A kernel of the other, since nothing takes one off the GPU but its time-slicing; then the switch, and both hosts. */
static double unavoidable_ms(int64_t kernel_ns) {
  return (double)(min(kernel_ns, MODEL_SLICE_NS) + MODEL_HAND_OVER_NS + 800 * US) / MS;
}

/* The 99th percentile is at most 1.5 times what it is alone, or comes from what cannot be avoided; and the training has
 * 80 % of what is left. Beside it is printed what comes of the GPU's own time-slicing. */
static void check_priority(void) {
  static const struct {
    const char *name;
    struct program program;
  } trainings[] = {{"5 ms", {5 * MS, 1, false, 0}}, {"1 ms", {MS, 1, false, 0}}, {"100 us", {100 * US, 1, false, 0}}};
  static const int kernels[] = {1, 20};
  for (int k = 0; k < COUNT(kernels); k++)
    for (int t = 0; t < COUNT(trainings); t++)
      for (unsigned seed = 1; seed <= 2; seed++) {
        double share;
        run_requests_beside(NULL, VGPU_SM_HARD, kernels[k], seed, &share);
        double alone_ms = percentile_ms(99);
        run_requests_beside(&trainings[t].program, VGPU_SM_OFF, kernels[k], seed, &share);
        double mixed_ms = percentile_ms(99);
        double other = run_requests_beside(&trainings[t].program, VGPU_SM_HARD, kernels[k], seed, &share);
        double p99_ms = percentile_ms(99);
        double bound_ms = alone_ms + unavoidable_ms(trainings[t].program.kernel_ns);
        if (bound_ms < 1.5 * alone_ms)
          bound_ms = 1.5 * alone_ms;
        row(requests.count == REQUESTS && p99_ms <= bound_ms && other >= 0.8 * (100 - share),
            "  %2d x %4lld us beside %-6s seed %u: p50 %6.2f, p99 %6.2f of %.2f ms, alone %.2f, mixed %.2f; the other "
            "%.2f of "
            "%.2f %%",
            kernels[k], (long long)(REQUEST_NS / kernels[k] / US), trainings[t].name, seed, percentile_ms(50), p99_ms,
            bound_ms, alone_ms, mixed_ms, other, 100 - share);
      }
}

/* High priority is no more GPU time than the limit, and the other has what that leaves, but for the hand-overs. */
static void check_high_priority_keeps_its_limit(void) {
  static const struct program *const programs[][2] = {{&us_50, &ms_1}, {&ms_1, &us_50}, {&ms_5, &ms_1}};
  static const uint32_t limits[][2] = {{50, 50}, {30, 70}, {80, 20}};
  for (int p = 0; p < COUNT(programs); p++)
    for (int l = 0; l < COUNT(limits); l++) {
      double shares[2];
      model_start_over(1);
      struct model_process *tenants[] = {tenant(0, limits[l][0], programs[p][0]),
                                         tenant(1, limits[l][1], programs[p][1])};
      model_container(1)->priority = VGPU_PRIORITY_LOW;
      measure_shares(tenants, 2, 2 * S, 12 * S, shares);
      row(is_within(shares[0], 0.95 * limits[l][0], 0.05 * limits[l][0] + 1) && shares[1] >= 0.8 * limits[l][1],
          "  high, %4lld us at %u beside low, %4lld us at %u: %6.2f and %6.2f %%",
          (long long)(programs[p][0]->kernel_ns / US), limits[l][0], (long long)(programs[p][1]->kernel_ns / US),
          limits[l][1], shares[0], shares[1]);
    }
}

/* Each of them hands the turn to the next one, and low priority comes in between all the same. */
static void check_many_light_ones_of_high_priority(void) {
  static const struct program program = {10 * US, 1, true, 2 * MS};
  static const int counts[] = {2, 4, 8};
  for (int c = 0; c < COUNT(counts); c++) {
    model_start_over(1);
    for (int i = 0; i < counts[c]; i++)
      model_start(0, run_program, &program, i * 300 * US);
    model_container(0)->percent = 20;
    struct model_process *low = tenant(1, 80, &ms_1);
    model_container(1)->priority = VGPU_PRIORITY_LOW;
    double share = measure_share(low, 2 * S, 12 * S);
    row(share >= 50 && model_longest_launch_ns(low) < S,
        "  low at 80 beside %d processes of high: %6.2f %%, stalled %6.1f ms", counts[c], share,
        (double)model_longest_launch_ns(low) / MS);
  }
}

/* ---- faults -------------------------------------------------------------------------------------------------------
 */

enum fault { KILLED_WITH_TURN, KILLED_WAITING, STOPPED_WITH_TURN, STOPPED_WAITING, ENDLESS, ENDLESS_AND_WAITS };
#define FAULT_NS (2 * S)

static bool is_endless(enum fault fault) {
  return fault == ENDLESS || fault == ENDLESS_AND_WAITS;
}

static void run_endless(struct model_process *process) {
  while (model_now_ns(process) < FAULT_NS)
    model_launch(process, 0, 0, MS);
  do
    model_launch(process, 0, 0, MODEL_ENDLESS_NS);
  while (*(const enum fault *)model_argument(process) == ENDLESS);
  model_synchronize(process, 0);
}

/* Returns when. */
static int64_t cause(enum fault fault, struct model_process *disturber) {
  int64_t at_ns = FAULT_NS;
  bool with_turn = fault == KILLED_WITH_TURN || fault == STOPPED_WITH_TURN;
  model_run(at_ns);
  if (is_endless(fault))
    return at_ns;
  for (int i = 0; i < 10000 && model_holds_turn(disturber) != with_turn; i++)
    model_run(at_ns += 100 * US);
  if (fault == KILLED_WITH_TURN || fault == KILLED_WAITING)
    model_kill(disturber);
  else
    model_stop(disturber, 600 * S);
  return at_ns;
}

/* Beside another container of the same limit, with another process of its own container or without. Work that does not
 * end gets its part of the GPU by the time-slicing, of which the switches cost 8 %: what is left is for all others. */
static void check_fault(enum fault fault, const struct program *program, bool with_sibling, unsigned seed) {
  static const char *const names[] = {"killed with its turn",   "killed while it waits", "stopped with its turn",
                                      "stopped while it waits", "has endless work",      "waits for endless work"};
  struct model_process *processes[2], *disturber;
  double shares[2] = {0};
  int count = with_sibling ? 2 : 1;
  model_start_over(seed);
  processes[0] = tenant(0, 50, program);
  disturber = is_endless(fault) ? model_start(1, run_endless, &fault, 0) : tenant(1, 50, program);
  model_container(1)->percent = 50;
  if (with_sibling)
    processes[1] = tenant(1, 50, program);
  model_run(FAULT_NS);
  for (int i = 0; i < count; i++)
    model_forget_stalls(processes[i]);
  int64_t at_ns = cause(fault, disturber);
  measure_shares(processes, count, at_ns + S, at_ns + 11 * S, shares);
  int64_t stall_ns = model_longest_launch_ns(processes[0]);
  double least = !is_endless(fault) ? 48 : with_sibling ? 30 : 42;
  double least_of_sibling = !is_endless(fault) ? 45 : 1;
  bool sibling_holds = !with_sibling || (shares[1] >= least_of_sibling && shares[1] <= 52);
  printf("  %-23s %4lld us, seed %u: the other %6.2f %%, stalled %6.1f ms", names[fault],
         (long long)(program->kernel_ns / US), seed, shares[0], (double)stall_ns / MS);
  if (with_sibling)
    printf("; its own other process %6.2f %%", shares[1]);
  bool is_open = fault >= ENDLESS && (with_sibling || shares[0] > 40);
  row_unless(is_open, shares[0] >= least && shares[0] <= 52 && stall_ns <= 150 * MS && sibling_holds, " ");
}

static void check_faults(unsigned seed) {
  static const struct program *const programs[] = {&ms_1, &ms_5};
  for (enum fault fault = KILLED_WITH_TURN; fault <= ENDLESS_AND_WAITS; fault++)
    for (int p = 0; p < COUNT(programs); p++)
      for (int with_sibling = 0; with_sibling < 2; with_sibling++)
        check_fault(fault, programs[p], with_sibling, seed);
}

/* ---- policies and changes -----------------------------------------------------------------------------------------
 */

static const struct program half_of_the_time = {MS, 1000, true, S}, light = {500 * US, 1, true, 9500 * US};

/* Hard limits hold always; a burst is a weight while others want the GPU, and else no limit; without a limit, a tenant
 * has an even part of what the hard limits leave. */
static void check_policies(unsigned seed) {
  static const struct {
    const char *name;
    struct {
      uint32_t percent, policy;
      const struct program *program; /* NULL: there is none */
      double due;                    /* less than 0: whatever it has */
    } tenants[2];
  } cases[] = {
      {"no limits", {{100, VGPU_SM_HARD, &ms_1, 50}, {100, VGPU_SM_HARD, &ms_1, 50}}},
      {"30, and no limit", {{30, VGPU_SM_HARD, &ms_1, 30}, {100, VGPU_SM_HARD, &ms_1, 70}}},
      {"bursts of 20 and 40", {{20, VGPU_SM_BURST, &ms_1, 100 / 3.0}, {40, VGPU_SM_BURST, &ms_1, 200 / 3.0}}},
      {"a burst of 20, and 40", {{20, VGPU_SM_BURST, &ms_1, 60}, {40, VGPU_SM_HARD, &ms_1, 40}}},
      {"a burst of 20 alone", {{20, VGPU_SM_BURST, &ms_1, 100}, {0, 0, NULL, 0}}},
      {"30 that is off, alone", {{30, VGPU_SM_OFF, &ms_1, 100}, {0, 0, NULL, 0}}},
      {"30 beside 70 that idles at times", {{30, VGPU_SM_HARD, &ms_1, 30}, {70, VGPU_SM_HARD, &half_of_the_time, -1}}},
      {"70 beside 30 that idles at times", {{70, VGPU_SM_HARD, &ms_1, 70}, {30, VGPU_SM_HARD, &half_of_the_time, -1}}},
      {"no limit beside a light one", {{100, VGPU_SM_HARD, &ms_1, 94}, {100, VGPU_SM_HARD, &light, -1}}},
      {"70 beside a light one at 30", {{70, VGPU_SM_HARD, &ms_1, 70}, {30, VGPU_SM_HARD, &light, -1}}},
  };
  for (int c = 0; c < COUNT(cases); c++) {
    struct model_process *tenants[2];
    double shares[2] = {0};
    int count = cases[c].tenants[1].program != NULL ? 2 : 1;
    bool holds = true;
    model_start_over(seed);
    for (int i = 0; i < count; i++) {
      tenants[i] = tenant(i, cases[c].tenants[i].percent, cases[c].tenants[i].program);
      model_container(i)->policy = cases[c].tenants[i].policy;
    }
    measure_shares(tenants, count, 2 * S, 22 * S, shares);
    for (int i = 0; i < count; i++) {
      bool limited = cases[c].tenants[i].policy == VGPU_SM_HARD && cases[c].tenants[i].percent < VGPU_NO_SM_LIMIT;
      holds &= cases[c].tenants[i].due < 0 || is_within(shares[i], cases[c].tenants[i].due, limited ? 1 : 2);
    }
    row(holds, "  %-32s seed %u: %6.2f and %6.2f %%", cases[c].name, seed, shares[0], shares[1]);
  }
}

/* Two jobs of a container, each on a GPU of its own: one flat out, and one that needs less than the limit by itself.
 * The first holds the other one up, unless their GPUs are apart. */
static void use_the_second_gpu(struct model_process *process) {
  for (;;) {
    model_launch(process, 1, 0, 2 * MS);
    model_synchronize(process, 1);
    model_think(process, 4 * MS);
  }
}

static void check_apart(void) {
  static const uint32_t policies[] = {VGPU_SM_HARD, VGPU_SM_APART};
  for (int p = 0; p < COUNT(policies); p++) {
    model_start_over(1);
    struct model_process *busy = tenant(0, 50, &ms_1), *light = model_start(0, use_the_second_gpu, NULL, 0);
    model_container(0)->policy = policies[p];
    model_run(2 * S);
    int64_t worked_ns = model_worked_ns(light);
    double share = measure_share(busy, 2 * S, 12 * S);
    double of_light = (double)(model_worked_ns(light) - worked_ns) / (10 * S) * 100;
    bool holds = is_within(share, 50, 1) && (policies[p] == VGPU_SM_HARD ? of_light < 30 : is_within(of_light, 33, 1));
    row(holds, "  %-32s %6.2f %% of one GPU, and %6.2f of the other", p == 0 ? "in step" : "apart", share, of_light);
  }
}

static void use_both_gpus(struct model_process *process) {
  for (;;)
    for (int gpu = 0; gpu < 2; gpu++)
      model_launch(process, gpu, 0, 20 * US);
}

static void fill_the_second_gpu(struct model_process *process) {
  for (;;)
    model_launch(process, 1, 0, 5 * MS);
}

/* Launches go to the one and to the other, and a tenant on each of them wants what the limit leaves. */
static void check_both_beside_one_on_each(void) {
  static const uint32_t percents[] = {80, 50, 30};
  for (int p = 0; p < COUNT(percents); p++) {
    model_start_over(1);
    for (int c = 0; c < 3; c++)
      model_container(c)->percent = c == 0 ? percents[p] : 100 - percents[p];
    struct model_process *both = model_start(0, use_both_gpus, NULL, 0);
    model_start(1, run_program, &ms_5, 700 * US);
    model_start(2, fill_the_second_gpu, NULL, 1400 * US);
    double share = measure_share(both, 2 * S, 12 * S) / 2;
    row_unless(true, is_within(share, percents[p], 1), "  both, beside a tenant on each       %6.2f %% of each at %u",
               share, percents[p]);
  }
}

/* A second after each change, what the new limit is; a pause begins when what is in flight is done. */
static void check_changes(unsigned seed) {
  static const struct {
    const char *name;
    const struct program *program, *other;
  } kinds[] = {
      {"50 us", &us_50, NULL}, {"1 ms", &ms_1, NULL}, {"5 ms", &ms_5, NULL}, {"1 ms, in company", &ms_1, &us_50}};
  static const uint32_t percents[] = {50, 10, 90, 30, 1, 80};
  for (int k = 0; k < COUNT(kinds); k++) {
    int64_t at_ns = 0;
    model_start_over(seed);
    struct model_process *process = tenant(0, percents[0], kinds[k].program);
    if (kinds[k].other != NULL)
      tenant(1, 10, kinds[k].other);
    printf("  %-16s seed %u:", kinds[k].name, seed);
    bool holds = true;
    for (int p = 0; p < COUNT(percents); p++, at_ns += 3 * S) {
      model_container(0)->percent = percents[p];
      double share = measure_share(process, at_ns + S, at_ns + 3 * S);
      printf(" %6.2f %% at %u,", share, percents[p]);
      holds &= is_within(share, percents[p], 1);
    }
    model_container(0)->paused = true;
    double paused = measure_share(process, at_ns + 100 * MS, at_ns + 2 * S);
    model_container(0)->paused = false;
    double after = measure_share(process, at_ns + 3 * S, at_ns + 5 * S);
    row(holds && paused == 0 && is_within(after, 80, 1), " %.2f %% paused, %6.2f %% afterwards", paused, after);
  }
}

int main(int count, char **names) {
  cases_begin(count, names);
  CASE("flat out") check_flat_out();
  CASE("long kernels beside short ones") check_long_kernels_beside_short_ones();
  CASE("priority") check_priority();
  CASE("high priority") {
    check_high_priority_keeps_its_limit();
    check_many_light_ones_of_high_priority();
  }
  CASE("faults") check_faults(1);
  CASE("faults, with another seed") check_faults(2);
  CASE("policies") check_policies(1);
  CASE("policies, with another seed") check_policies(2);
  CASE("two GPUs") {
    check_apart();
    check_both_beside_one_on_each();
  }
  CASE("changes") check_changes(1);
  CASE("changes, with another seed") check_changes(2);
  return rows_end();
}
