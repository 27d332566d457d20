/*
 * One program under a limit, alone on its GPU: what it has of the GPU's time, and whether it is slowed where it needs
 * less than its limit.
 */
#include "check.h"
#include "rows.h"

struct program {
  const char *name;
  int64_t kernel_ns;
  int kernels; /* between waits and thoughts */
  int streams; /* of narrow kernels, that run side by side; 1: a filling one after the other */
  enum { NEVER_WAITS, WAITS, POLLS, WATCHES } end;
  int64_t think_ns, think_each_ns; /* after them; after each */
  enum { LIKE_THIS, MIXED, MIXED_UNDER_ONE_NAME, NEW_NAMES } lengths;
};

static int64_t steps; /* since the beginning */

/* Draws a length, each decade as often as any other: most launches are short, and most of the time is spent in long
 * ones. */
static int64_t length_ns(struct model_process *process, const struct program *program) {
  if (program->lengths == LIKE_THIS || program->lengths == NEW_NAMES)
    return program->kernel_ns;
  static const int64_t lengths_ns[] = {5 * US, 20 * US, 100 * US, 400 * US};
  return lengths_ns[model_random_ns(process, 0, COUNT(lengths_ns) - 1)];
}

#define AHEAD 4 /* launches and markers, of a program that watches its kernels */

static uint64_t name_of(const struct program *program, int64_t kernel_ns) {
  if (program->lengths == NEW_NAMES)
    return (uint64_t)steps + 1;
  return program->lengths == MIXED_UNDER_ONE_NAME ? 1 : (uint64_t)kernel_ns;
}

static void run_program(struct model_process *process) {
  const struct program *program = model_argument(process);
  for (steps = 0;; steps++) {
    for (int i = 0; i < program->kernels; i++) {
      int64_t kernel_ns = length_ns(process, program);
      model_launch_kernel(process, &(const struct model_kernel){.stream = i % program->streams,
                                                                .duration_ns = kernel_ns,
                                                                .work = name_of(program, kernel_ns),
                                                                .narrow = program->streams > 1});
      model_think(process, program->think_each_ns);
    }
    if (program->end == WAITS)
      model_synchronize(process, 0);
    for (int stream = 0; program->end == POLLS && stream < program->streams; stream++)
      while (!model_is_done(process, 0, stream))
        model_think(process, 20 * US);
    if (program->end == WATCHES)
      model_watch(process, 0, 0, AHEAD, 5 * US);
    model_think(process, program->think_ns);
  }
}

struct figures {
  double share, steps_per_s;
};

static struct figures run_at(const struct program *program, uint32_t percent, unsigned seed, int64_t length_ns) {
  model_start_over(seed);
  model_container(0)->percent = percent;
  struct model_process *process = model_start(0, run_program, program, 0);
  model_run(S);
  int64_t before = steps;
  double share = measure_share(process, S, S + length_ns);
  return (struct figures){share, (double)(steps - before) * S / (double)length_ns};
}

/* Long enough that one kernel, or what a bucket holds, is a small part of it. */
static int64_t measured_ns(const struct program *program) {
  int64_t step_ns = program->kernel_ns * program->kernels;
  return step_ns < 20 * US ? 8 * S : step_ns <= MS ? 5 * S : step_ns <= 5 * MS ? 20 * S : 600 * step_ns + 20 * S;
}

/* Around each wait for it a GPU has had nothing to do for some microseconds, which may count as work; and where the
 * work is measured, a host has recorded the ends of it. */
#define WAIT_COUNTS_NS (8 * US)
#define WAIT_COSTS_NS (3 * US)

/* Within a point of the limit; and where the program needs less by itself, as fast as without, but for 1 %. */
static bool is_right(const struct program *program, uint32_t percent, const struct figures *own,
                     const struct figures *limited) {
  bool waits = program->end != NEVER_WAITS;
  double work_ns = own->share / 100 * S / own->steps_per_s, counts_ns = waits ? WAIT_COUNTS_NS : 0;
  double slower = 0.01 + (waits ? own->steps_per_s * WAIT_COSTS_NS / S : 0);
  if (own->share <= percent)
    return limited->steps_per_s >= own->steps_per_s * (1 - slower);
  double counts_percent = percent * counts_ns / (work_ns + counts_ns);
  return limited->share >= percent - 1 - counts_percent && limited->share <= percent + 1;
}

static void check_limits(const struct program *program, const uint32_t *percents, int count) {
  unsigned seeds = program->lengths == LIKE_THIS ? 1 : 2;
  for (unsigned seed = 1; seed <= seeds; seed++) {
    struct figures own = run_at(program, VGPU_NO_SM_LIMIT, seed, measured_ns(program) / 2);
    printf("  %-42s needs %6.2f %%", program->name, own.share);
    bool holds = true;
    for (int p = 0; p < count; p++) {
      struct figures limited = run_at(program, percents[p], seed, measured_ns(program));
      bool right = is_right(program, percents[p], &own, &limited);
      if (own.share <= percents[p])
        printf("; at %u %.1f %% fast", percents[p], 100 * limited.steps_per_s / own.steps_per_s);
      else
        printf("; at %u %.2f %%", percents[p], limited.share);
      printf("%s", right ? "" : " (!)");
      holds &= right;
    }
    bool is_open = program->lengths == MIXED_UNDER_ONE_NAME || program->kernel_ns <= 2 * US;
    row_unless(is_open, holds, " ");
  }
}

/* ---- the GPU is the bottleneck ------------------------------------------------------------------------------------
 */

static void check_lengths(void) {
  static const struct {
    const char *name;
    int64_t ns;
  } lengths[] = {{"2 us", 2 * US},
                 {"10 us", 10 * US},
                 {"50 us", 50 * US},
                 {"200 us", 200 * US},
                 {"1 ms", MS},
                 {"5 ms", 5 * MS},
                 {"30 ms", 30 * MS},
                 {"200 ms", 200 * MS},
                 {"300 ms", 300 * MS},
                 {"a graph of 100 x 50 us", 5 * MS},
                 {"a graph of 20 x 10 us", 200 * US}};
  static const int graphs = 2;
  static const struct {
    const char *name;
    int streams, end;
  } ways[] = {{"", 1, NEVER_WAITS},
              {", waited for", 1, WAITS},
              {", 4 streams", 4, NEVER_WAITS},
              {", 4 streams, waited for", 4, WAITS},
              {", watched", 1, WATCHES}};
  static const uint32_t percents[] = {10, 25, 50, 75, 90};
  for (int w = 0; w < COUNT(ways); w++)
    for (int l = 0; l < COUNT(lengths) - (w > 0 ? graphs : 0); l++) { /* which are one launch each */
      if (ways[w].end == WATCHES && lengths[l].ns < 30 * MS)          /* it would do nothing else */
        continue;
      char name[80];
      snprintf(name, sizeof name, "%s%s", lengths[l].name, ways[w].name);
      struct program program = {name, lengths[l].ns, ways[w].streams, ways[w].streams, ways[w].end, 0, 0, LIKE_THIS};
      check_limits(&program, percents, COUNT(percents));
    }
  /* The valve opens for what may wait for the launch; that it does not help is soon known. */
  static const struct program valves[] = {
      {"110 ms, of a new name each", 110 * MS, 1, 1, NEVER_WAITS, 0, 0, NEW_NAMES},
      {"220 ms, of a new name each", 220 * MS, 1, 1, NEVER_WAITS, 0, 0, NEW_NAMES},
      {"200 ms, of a new name each, watched", 200 * MS, 1, 1, WATCHES, 0, 0, NEW_NAMES},
  };
  for (int v = 0; v < COUNT(valves); v++)
    for (int p = 0; p < COUNT(percents); p++) {
      double share = run_at(&valves[v], percents[p], 1, measured_ns(&valves[v])).share;
      row(share <= percents[p] + 1, "  %-42s at %u %.2f %%", valves[v].name, percents[p], share);
    }
}

/* ---- the host is, for part of the time ----------------------------------------------------------------------------
 */

static void check_hosts(const uint32_t *percents, int count) {
  static const struct program programs[] = {
      {"20 us every 100 us", 20 * US, 1, 1, NEVER_WAITS, 0, 97 * US, LIKE_THIS},
      {"20 us every 100 us, waited for", 20 * US, 1, 1, WAITS, 0, 72 * US, LIKE_THIS},
      {"20 us every 100 us, polled", 20 * US, 1, 1, POLLS, 0, 72 * US, LIKE_THIS},
      {"50 x 10 us, then 1 ms of host", 10 * US, 50, 1, NEVER_WAITS, MS, 0, LIKE_THIS},
      {"50 x 10 us, waited for, then 1 ms of host", 10 * US, 50, 1, WAITS, MS, 0, LIKE_THIS},
      {"50 x 10 us, polled, then 1 ms of host", 10 * US, 50, 1, POLLS, MS, 0, LIKE_THIS},
      {"5 ms, waited for, then 3 ms of host", 5 * MS, 1, 1, WAITS, 3 * MS, 0, LIKE_THIS},
      {"5 ms, polled, then 3 ms of host", 5 * MS, 1, 1, POLLS, 3 * MS, 0, LIKE_THIS},
      {"10 ms of 1 ms, waited for, then 25 ms", MS, 10, 1, WAITS, 25 * MS, 0, LIKE_THIS},
      {"mixed lengths", 130 * US, 1, 1, NEVER_WAITS, 0, 200 * US, MIXED},
      {"mixed lengths under one name", 130 * US, 1, 1, NEVER_WAITS, 0, 200 * US, MIXED_UNDER_ONE_NAME},
      {"20 of mixed lengths, waited for, then 2 ms", 130 * US, 20, 1, WAITS, 2 * MS, 0, MIXED},
      {"20 of mixed lengths, one name, polled", 130 * US, 20, 1, POLLS, 2 * MS, 0, MIXED_UNDER_ONE_NAME},
      {"4 streams of 200 us every 500 us", 200 * US, 4, 4, NEVER_WAITS, 485 * US, 0, LIKE_THIS},
  };
  for (int p = 0; p < COUNT(programs); p++)
    check_limits(&programs[p], percents, count);
}

int main(int count, char **names) {
  cases_begin(count, names);
  CASE("kernels and graphs") check_lengths();
  CASE("hosts") check_hosts((const uint32_t[]){10, 50, 90}, 3);
  CASE("hosts at other limits") check_hosts((const uint32_t[]){5, 15, 25, 75}, 4);
  return rows_end();
}
