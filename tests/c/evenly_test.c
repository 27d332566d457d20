/* Processes of one container that want the GPU all the time get even parts of its limit, on simulated time. */
#include "check.h"
#include "evenly.h"
#include "gpu_model.h"

/* ---- the places -------------------------------------------------------------------------------------------------- */

static struct vgpu_device_shared device;
static const int64_t now_ns = 1000 * S;

static int wait_as(uint64_t owner, int64_t had_ns, int place) {
  struct vgpu_waiter waiter = {.owner = owner, .had_ns = had_ns, .looks_at_ns = now_ns + MS};
  return evenly_wait(device.waiters, place, &waiter, now_ns);
}

static uint64_t first_for(uint64_t owner, int64_t at_ns) {
  struct vgpu_waiter first;
  return evenly_first(device.waiters, owner, at_ns, &first) ? first.owner : 0;
}

static void check_who_is_first(void) {
  device = (struct vgpu_device_shared){0};
  CHECK(first_for(1, now_ns) == 0, "nobody waits");
  int one = wait_as(1, 5 * MS, -1), two = wait_as(2, 3 * MS, -1), three = wait_as(3, 4 * MS, -1);
  CHECK(first_for(1, now_ns) == 2 && first_for(2, now_ns) == 3 && first_for(0, now_ns) == 2, "the least");
  CHECK(wait_as(2, 6 * MS, two) == two && first_for(1, now_ns) == 3, "has had more by now");
  CHECK(wait_as(2, 0, -1) == -1 && first_for(1, now_ns) == 3, "one place for all threads of a process");
  evenly_leave(device.waiters, three, 3);
  CHECK(first_for(1, now_ns) == 2, "has left");
  CHECK(first_for(1, now_ns + MS + EVENLY_LATE_NS - 1) == 2, "is late");
  CHECK(first_for(1, now_ns + MS + EVENLY_LATE_NS) == 0, "is killed, or stopped");
  CHECK(wait_as(4, 0, -1) == three, "takes what is free");
  evenly_leave(device.waiters, three, 3);
  CHECK(first_for(1, now_ns) == 4, "and nobody else leaves it");
  CHECK(wait_as(3, 0, three) != three, "nor waits there");
  evenly_leave(device.waiters, one, 1);
}

static void check_there_are_more_than_places(void) {
  device = (struct vgpu_device_shared){0};
  for (uint64_t i = 1; i <= VGPU_WAITERS; i++)
    CHECK(wait_as(i, (int64_t)i, -1) >= 0, "%llu", (unsigned long long)i);
  CHECK(wait_as(100, 0, -1) == -1 && first_for(100, now_ns) == 1, "no place is left");
}

static void check_damage(void) {
  const struct vgpu_waiter damaged[] = {
      {7, -1, now_ns}, {7, INT64_MAX, now_ns}, {7, INT64_MIN, now_ns}, {7, 0, INT64_MAX}, {7, 0, INT64_MIN}};
  for (size_t i = 0; i < sizeof damaged / sizeof *damaged; i++) {
    for (int w = 0; w < VGPU_WAITERS; w++)
      device.waiters[w] = damaged[i];
    CHECK(first_for(1, now_ns) == 0 && wait_as(1, 0, -1) == 0, "%zu is believed", i);
  }
}

/* ---- processes --------------------------------------------------------------------------------------------------- */

struct work {
  int64_t kernel_ns;
  bool synchronizes;
  int64_t think_ns;
};

static const struct work us_4 = {4 * US, false, 0}, us_50 = {50 * US, false, 0}, ms_1 = {MS, false, 0},
                         ms_5 = {5 * MS, false, 0}, us_50_each = {50 * US, true, 0}, ms_1_each = {MS, true, 0},
                         light = {MS, true, 20 * MS};

static void run_work(struct model_process *process) {
  const struct work *work = model_argument(process);
  for (;;) {
    model_launch(process, 0, 0, work->kernel_ns);
    if (work->synchronizes)
      model_synchronize(process, 0);
    model_think(process, work->think_ns);
  }
}

#define MOST 4
#define WINDOW_NS (1500 * MS)
#define WINDOWS 7

static double least_of_most(const int64_t *values, int count) {
  int64_t least = values[0], most = values[0];
  for (int i = 1; i < count; i++) {
    least = values[i] < least ? values[i] : least;
    most = values[i] > most ? values[i] : most;
  }
  return most > 0 ? (double)least / (double)most : 0;
}

struct parts {
  double in_a_window, in_all; /* least of most */
  double sum_percent;
};

static struct parts parts_of(struct model_process **processes, int count, int64_t from_ns) {
  struct parts parts = {1, 1, 0};
  int64_t before_ns[MOST], first_ns[MOST], now[MOST], part[MOST];
  model_run(from_ns);
  for (int i = 0; i < count; i++)
    before_ns[i] = first_ns[i] = model_worked_ns(processes[i]);
  for (int w = 1; w <= WINDOWS; w++) {
    model_run(from_ns + w * WINDOW_NS);
    for (int i = 0; i < count; i++) {
      now[i] = model_worked_ns(processes[i]);
      part[i] = now[i] - before_ns[i];
      before_ns[i] = now[i];
    }
    double even = least_of_most(part, count);
    parts.in_a_window = even < parts.in_a_window ? even : parts.in_a_window;
  }
  for (int i = 0; i < count; i++) {
    part[i] = now[i] - first_ns[i];
    parts.sum_percent += 100.0 * (double)part[i] / (double)(WINDOWS * WINDOW_NS);
  }
  parts.in_all = least_of_most(part, count);
  return parts;
}

static const struct kind {
  const char *name;
  const struct work *even, *odd;
  int64_t last_begins_ns;
} kinds[] = {
    {"4 us", &us_4, &us_4, 0},
    {"50 us", &us_50, &us_50, 0},
    {"1 ms", &ms_1, &ms_1, 0},
    {"50 us and 5 ms", &us_50, &ms_5, 0},
    {"50 us, waited for", &us_50_each, &us_50_each, 0},
    {"1 ms, and waited for", &ms_1, &ms_1_each, 0},
    {"1 ms, one later", &ms_1, &ms_1, S},
};

/* What is handed out at a time is 8 ms, which is much of what each of four at 10 % gets. */
static void check_even_parts(void) {
  static const uint32_t percents[] = {10, 25, 50, 90};
  for (size_t k = 0; k < sizeof kinds / sizeof *kinds; k++)
    for (int count = 2; count <= MOST; count += 2)
      for (int p = 0; p < 4; p++) {
        struct model_process *processes[MOST];
        model_start_over(1);
        model_container(0)->percent = percents[p];
        for (int i = 0; i < count; i++)
          processes[i] = model_start(0, run_work, i % 2 == 0 ? kinds[k].even : kinds[k].odd,
                                     i == count - 1 ? kinds[k].last_begins_ns : 0);
        struct parts parts = parts_of(processes, count, 2 * S);
        printf("%d of %s at %u: least of most %.2f in 1.5 s, %.3f in all; together %.2f %%\n", count, kinds[k].name,
               percents[p], parts.in_a_window, parts.in_all, parts.sum_percent);
        bool coarse = count == MOST && percents[p] == 10;
        CHECK(parts.in_a_window > (coarse ? 0.5 : 0.78), "%.2f", parts.in_a_window);
        CHECK(parts.in_all > (coarse ? 0.9 : 0.95), "%.3f", parts.in_all);
        double idle_part = (double)MODEL_MARKER_NS / METER_BATCH_NS;
        if (kinds[k].odd->synchronizes) /* the GPU may be idle before it switches, and then it has to */
          idle_part += (double)MODEL_HAND_OVER_NS / METER_COMPANY_QUANTUM_NS;
        double lost = kinds[k].even->synchronizes ? 0.1 * percents[p] : 0.25 + percents[p] * idle_part;
        CHECK(parts.sum_percent > percents[p] - lost && parts.sum_percent < percents[p] + 0.25, "%.2f %%",
              parts.sum_percent);
      }
}

/* What one does not want is the other's. */
static void check_beside_a_light_one(void) {
  model_start_over(2);
  model_container(0)->percent = 50;
  struct model_process *flat_out = model_start(0, run_work, &ms_1, 0), *other = model_start(0, run_work, &light, 0);
  model_run(S);
  int64_t flat_ns = model_worked_ns(flat_out), other_ns = model_worked_ns(other);
  model_run(11 * S);
  double share = (double)(model_worked_ns(flat_out) - flat_ns) / 1e8;
  double lights = (double)(model_worked_ns(other) - other_ns) / 1e8;
  printf("flat out beside a light one: %.2f and %.2f %%\n", share, lights);
  CHECK(share + lights > 49.5 && share + lights < 50.5, "%.2f %%", share + lights);
  CHECK(lights > 3, "%.2f %%", lights);
}

/* A container's processes have its part, whatever they are beside. */
static void check_beside_another_container(void) {
  model_start_over(4);
  model_container(0)->percent = model_container(1)->percent = 50;
  struct model_process *processes[] = {model_start(0, run_work, &ms_1, 0), model_start(0, run_work, &us_50, 0),
                                       model_start(1, run_work, &ms_1, 0)};
  struct parts both = parts_of(processes, 2, 2 * S);
  printf("two beside another container: %.3f, together %.2f %%\n", both.in_all, both.sum_percent);
  CHECK(both.in_all > 0.92 && both.in_a_window > 0.8, "%.3f, %.2f", both.in_all, both.in_a_window);
  CHECK(both.sum_percent > 49 && both.sum_percent < 51, "%.2f %%", both.sum_percent);
}

/* A limit that the other tenant leaves open for a moment does not let one process past those that wait. */
static void check_a_limit_that_yields(void) {
  model_start_over(3);
  model_container(0)->percent = 80;
  model_container(1)->percent = 50;
  model_container(0)->policy = model_container(1)->policy = VGPU_SM_BURST;
  struct model_process *processes[] = {model_start(0, run_work, &ms_1, 0), model_start(0, run_work, &ms_1, 10 * MS)};
  model_start(1, run_work, &ms_1, 20 * MS);
  struct parts both = parts_of(processes, 2, 2 * S);
  printf("two of a limit that yields: %.3f, together %.2f %%\n", both.in_all, both.sum_percent);
  CHECK(both.in_all > 0.9 && both.sum_percent > 58, "%.3f, %.2f %%", both.in_all, both.sum_percent);
}

/* Killed or stopped at any moment: the other one waits a moment longer than it does in any case. */
static int64_t longest_stall_ns(uint32_t percent, int64_t at_ns, bool killed) {
  model_start_over(5);
  model_container(0)->percent = percent;
  struct model_process *other = model_start(0, run_work, &ms_1, 0), *gone = model_start(0, run_work, &ms_1, 0);
  model_run(at_ns);
  model_forget_stalls(other);
  if (killed)
    model_kill(gone);
  else
    model_stop(gone, 60 * S);
  model_run(at_ns + S);
  int64_t stall_ns = model_longest_launch_ns(other), before_ns = model_worked_ns(other);
  model_run(at_ns + 3 * S);
  double share = (double)(model_worked_ns(other) - before_ns) / 2e7;
  CHECK(share > percent - 1.5 && share < percent + 1.5, "%.2f %% afterwards", share);
  return stall_ns;
}

static void check_one_is_gone(void) {
  static const uint32_t percents[] = {10, 50, 90};
  for (int p = 0; p < 3; p++)
    for (int killed = 0; killed < 2; killed++) {
      int64_t longest_ns = 0;
      for (int i = 0; i < 30; i++) {
        int64_t stall_ns = longest_stall_ns(percents[p], 2 * S + i * 3700 * US, killed);
        longest_ns = stall_ns > longest_ns ? stall_ns : longest_ns;
      }
      /* Tokens for 8 ms, after what the two of them owe. */
      int64_t due_ns = (METER_COMPANY_QUANTUM_NS + 5 * MS) * 100 / percents[p];
      printf("%s at %u: the other waits %.1f ms at most\n", killed ? "killed" : "stopped", percents[p],
             (double)longest_ns / 1e6);
      CHECK(longest_ns < due_ns + 100 * MS, "%lld ms", (long long)(longest_ns / MS));
    }
}

int main(void) {
  setbuf(stdout, NULL);
  check_who_is_first();
  check_there_are_more_than_places();
  check_damage();
  check_even_parts();
  check_beside_a_light_one();
  check_beside_another_container();
  check_a_limit_that_yields();
  check_one_is_gone();
  return 0;
}
