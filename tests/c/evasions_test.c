/*
 * Work that is measured at the program's next call may never be measured: short processes that poll and exit, and
 * programs that do what they can to have more than their limit. All are limited to 20.
 */
#include "check.h"
#include "rows.h"

#define PERCENT 20

/* ---- short processes ----------------------------------------------------------------------------------------------
 */

#define SHORT_PROCESSES 30
#define START_NS (5 * MS) /* of a process, until its first launch */

enum way { QUERIES_STREAM, QUERIES_EVENT, SYNCHRONIZES };

struct row_of_processes {
  enum way way;
  int processes; /* one after the other */
  int64_t ended_ns;
};

static void wait_in_that_way(struct model_process *process, enum way way) {
  struct marker *event = way == QUERIES_EVENT ? model_record(process, 0, 0) : NULL;
  if (way == SYNCHRONIZES)
    model_synchronize(process, 0);
  else if (way == QUERIES_EVENT)
    while (!model_has_reached(process, event))
      model_think(process, 50 * US);
  else
    while (!model_is_done(process, 0, 0))
      model_think(process, 50 * US);
}

static void run_short_processes(struct model_process *process) {
  struct row_of_processes *row = (struct row_of_processes *)model_argument(process);
  for (int i = 0; i < row->processes; i++) {
    if (i > 0)
      model_begin_anew(process);
    model_think(process, START_NS);
    for (int kernel = 0; kernel < 2; kernel++) {
      model_launch(process, 0, 0, 30 * MS);
      wait_in_that_way(process, row->way);
    }
    row->ended_ns = model_now_ns(process);
  }
}

/* Their work takes the time that is due for it, but for a tenth. */
static void check_short_processes(void) {
  static const char *const names[] = {"query their stream", "query an event", "synchronise"};
  for (enum way way = QUERIES_STREAM; way <= SYNCHRONIZES; way++)
    for (int at_a_time = 1; at_a_time <= 4; at_a_time += 3)
      for (unsigned seed = 1; seed <= 2; seed++) {
        struct row_of_processes rows[4];
        model_start_over(seed);
        model_container(0)->percent = PERCENT;
        for (int i = 0; i < at_a_time; i++) {
          rows[i] = (struct row_of_processes){way, (SHORT_PROCESSES + i) / at_a_time, 0};
          model_start(0, run_short_processes, &rows[i], i * MS);
        }
        model_run(60 * S);
        int64_t ended_ns = 0;
        for (int i = 0; i < at_a_time; i++)
          ended_ns = rows[i].ended_ns > ended_ns ? rows[i].ended_ns : ended_ns;
        double due_s = SHORT_PROCESSES * 2 * 0.030 * 100 / PERCENT, took_s = (double)ended_ns / S;
        row(is_within(took_s, due_s, due_s / 10), "  %d processes that %s, %d at a time: %.2f s, where %.2f are due",
            SHORT_PROCESSES, names[way], at_a_time, took_s, due_s);
      }
}

/* ---- cheaters -----------------------------------------------------------------------------------------------------
 */

static void run_long_behind_short(struct model_process *process) {
  for (;;) {
    for (int64_t i = model_random_ns(process, 0, 100); i >= 0; i--)
      model_launch_as(process, 0, 0, 10 * US, 1);
    model_launch_as(process, 0, 0, 20 * MS, 1);
  }
}

/* Rows of short ones, waited for, that teach what a launch costs; and then one that costs more. */
static void run_long_behind_many(struct model_process *process) {
  for (;;) {
    for (int64_t i = model_random_ns(process, 1000, 5000); i >= 0; i--)
      model_launch_as(process, 0, 0, 10 * US, 1);
    model_poll(process, 0);
    for (int i = 0; i < 10; i++)
      model_launch_as(process, 0, 0, 20 * MS, 1);
    model_poll(process, 0);
  }
}

static void run_new_functions(struct model_process *process) {
  for (uint64_t work = 1;; work++)
    model_launch_as(process, 0, 0, 5 * MS, work);
}

static void run_fresh_streams(struct model_process *process) {
  for (int stream = 0;; stream = (stream + 1) % 100) {
    model_renew_stream(process, 0, stream);
    model_launch_as(process, 0, stream, 5 * MS, 1);
  }
}

static void run_fresh_streams_that_wait(struct model_process *process) {
  for (;;) {
    for (int stream = 0; stream < 100; stream++)
      model_launch_as(process, 0, stream, MS, 1);
    model_poll(process, 0);
    for (int stream = 0; stream < 100; stream++)
      model_renew_stream(process, 0, stream);
  }
}

static void run_once_and_exit(struct model_process *process) {
  for (;;) {
    model_think(process, 20 * MS);
    model_launch(process, 0, 0, 30 * MS);
    model_poll(process, 0);
    model_begin_anew(process);
  }
}

/* The work ends before the process does, and it has asked for nothing meanwhile. */
static void run_once_and_sleep(struct model_process *process) {
  for (;;) {
    model_think(process, 20 * MS);
    model_launch(process, 0, 0, 30 * MS);
    model_think(process, 31 * MS);
    model_begin_anew(process);
  }
}

static void run_often_and_exit(struct model_process *process) {
  for (;;) {
    model_think(process, 20 * MS);
    for (int i = 0; i < 200; i++)
      model_launch(process, 0, 0, 500 * US);
    model_poll(process, 0);
    model_begin_anew(process);
  }
}

/* The valve opens for the launch that sets the spinning one free; and then for the long one? */
static void run_long_beside_spins(struct model_process *process) {
  for (int i = 1;; i++) {
    model_launch_kernel(process, &(const struct model_kernel){0, 0, 10 * US, 1, true, 0, i});
    model_launch_kernel(process, &(const struct model_kernel){0, 1, 10 * US, 2, true, i, 0});
    model_launch_as(process, 0, 2, 60 * MS, (uint64_t)i + 2);
  }
}

/* A long kernel ends, unseen, after a launch has been held: is it what the next one is held for? */
static void run_long_for_spins(struct model_process *process) {
  const int *length_ms = model_argument(process);
  for (int i = 1;; i++) {
    model_launch_kernel(process, &(const struct model_kernel){0, 1, 10 * US, 1, true, 0, i});
    model_launch_kernel(process, &(const struct model_kernel){0, 0, *length_ms * MS, 2, false, i, 0});
    model_poll(process, 0);
  }
}

/* Each kernel of a millisecond has another stream's spin for as long. */
static void run_spins_ahead(struct model_process *process) {
  for (int i = 1;; i++) {
    model_launch_kernel(process, &(const struct model_kernel){0, 1, 10 * US, 1, true, 0, i});
    model_launch_kernel(process, &(const struct model_kernel){0, 0, MS, 2, true, 0, 0});
    model_launch_kernel(process, &(const struct model_kernel){0, 0, 10 * US, 3, true, i, 0});
  }
}

/* Two processes, now one and now the other. */
static void run_every_other(struct model_process *process) {
  const int *number = model_argument(process);
  for (;;) {
    if (model_now_ns(process) / (50 * MS) % 2 == *number)
      model_launch(process, 0, 0, MS);
    else
      model_think(process, MS);
  }
}

/* The time that gathered while it slept is used at once: all that a bucket holds, after the sleep that fills it. */
static void run_after_sleeps(struct model_process *process) {
  const int *sleep_ms = model_argument(process);
  for (;;) {
    for (int i = 0; i < *sleep_ms * 9 / 10; i++)
      model_launch(process, 0, 0, MS);
    model_poll(process, 0);
    model_think(process, *sleep_ms * MS);
  }
}

/* Now short, now long, and never the same for long: what it costs is never what it cost. */
static void run_changing(struct model_process *process) {
  for (;;) {
    int64_t kernel_ns = model_random_ns(process, 0, 1) == 0 ? 10 * US : model_random_ns(process, MS, 20 * MS);
    for (int64_t i = model_random_ns(process, 1, 20); i > 0; i--)
      model_launch_as(process, 0, (int)(i % 4), kernel_ns, 1);
    if (model_random_ns(process, 0, 3) == 0)
      model_poll(process, 0);
  }
}

/* Launches a short kernel on each stream; nobody sees whether they ran side by side or one after the other. */
static void run_on_many_streams(struct model_process *process) {
  const int *streams = model_argument(process);
  for (;;) {
    for (int stream = 0; stream < *streams; stream++)
      model_launch_as(process, 0, stream, 100 * US, 1);
    model_poll(process, 0);
  }
}

/* At most two points more than the limit, over 20 s; and the half of it, since all want more. */
static void check_cheaters(void) {
  static const int numbers[] = {0, 1, 50, 80, 100, 200, 8, 32, 2, 20, 60};
  static const struct {
    const char *name;
    model_program *program;
    int processes;
    const int *argument; /* the first one's */
  } cheaters[] = {
      {"long kernels behind some short ones", run_long_behind_short, 1, NULL},
      {"long kernels behind many short ones", run_long_behind_many, 1, NULL},
      {"a new function for each launch", run_new_functions, 1, NULL},
      {"a fresh stream for each launch", run_fresh_streams, 1, NULL},
      {"a hundred fresh streams at a time", run_fresh_streams_that_wait, 1, NULL},
      {"processes that launch once", run_once_and_exit, 1, NULL},
      {"processes that launch once, 8 at a time", run_once_and_exit, 8, NULL},
      {"processes that launch once, and sleep", run_once_and_sleep, 1, NULL},
      {"processes that launch 200 times, 4 at a time", run_often_and_exit, 4, NULL},
      {"long kernels beside spins", run_long_beside_spins, 1, NULL},
      {"kernels of 2 ms that set spins free", run_long_for_spins, 1, &numbers[8]},
      {"kernels of 20 ms that set spins free", run_long_for_spins, 1, &numbers[9]},
      {"kernels of 60 ms that set spins free", run_long_for_spins, 1, &numbers[10]},
      {"kernels that have others spin", run_spins_ahead, 1, NULL},
      {"two processes, now one and now the other", run_every_other, 2, &numbers[0]},
      {"work after sleeps of 50 ms", run_after_sleeps, 1, &numbers[2]},
      {"work after sleeps of 80 ms", run_after_sleeps, 1, &numbers[3]},
      {"work after sleeps of 100 ms", run_after_sleeps, 1, &numbers[4]},
      {"work after sleeps of 200 ms, 4 processes", run_after_sleeps, 4, &numbers[5]},
      {"changing lengths on 4 streams", run_changing, 1, NULL},
      {"100 us on each of 8 streams", run_on_many_streams, 1, &numbers[6]},
      {"100 us on each of 32 streams", run_on_many_streams, 1, &numbers[7]},
  };
  for (int c = 0; c < COUNT(cheaters); c++)
    for (unsigned seed = 1; seed <= 3; seed++) {
      struct model_process *processes[8];
      double shares[8], sum = 0;
      model_start_over(seed);
      model_container(0)->percent = PERCENT;
      for (int i = 0; i < cheaters[c].processes; i++) {
        bool numbered = cheaters[c].program == run_every_other;
        processes[i] = model_start(0, cheaters[c].program, cheaters[c].argument + (numbered ? i : 0), i * 3 * MS);
      }
      measure_shares(processes, cheaters[c].processes, S, 21 * S, shares);
      for (int i = 0; i < cheaters[c].processes; i++)
        sum += shares[i];
      bool is_open = cheaters[c].program == run_long_behind_many || cheaters[c].program == run_changing ||
                     cheaters[c].program == run_on_many_streams;
      row_unless(is_open, sum <= PERCENT + 2 && sum >= PERCENT / 2, "  %-44s seed %u: %6.2f %%", cheaters[c].name, seed,
                 sum);
    }
}

int main(int count, char **names) {
  cases_begin(count, names);
  CASE("short processes") check_short_processes();
  CASE("cheaters") check_cheaters();
  return rows_end();
}
