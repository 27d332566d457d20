/*
 * A tenant lies in its own file of the turns, for twenty seconds, while others use the GPU flat out, on simulated time:
 * nobody exceeds its limit, nobody gets less than half of what falls to it, and no launch waits for a second. The liar
 * may have at most what its host has written.
 */
#include "cases.h"
#include "check.h"
#include "gpu_model.h"
#include "turns/turns.h"

#include <stdlib.h>
#include <string.h>

static unsigned random_state;
static struct turns_slot *slots; /* the liar's */

static void fill_slots(int count, int64_t waits_ns) {
  int64_t now_ns = model_file_now_ns();
  for (int i = 0; i < count; i++)
    slots[i] = (struct turns_slot){.ticket_ns = waits_ns > 0 ? now_ns - waits_ns : 0, .seen_ns = now_ns};
}

static void write_random_bytes(void) {
  unsigned char *bytes = (unsigned char *)slots;
  for (size_t i = 0; i < TURNS_SLOTS * sizeof *slots; i++)
    bytes[i] = (unsigned char)rand_r(&random_state);
}

static void write_a_random_number(void) {
  size_t place = (size_t)rand_r(&random_state) % (TURNS_SLOTS * sizeof *slots / 8) * 8;
  int64_t number = rand_r(&random_state) % 2 ? model_file_now_ns() : 0x7f7f7f7f7f7f7f7f;
  memcpy((char *)slots + place, &number, sizeof number);
}

static void cut_off(void) {
  memset(slots, 0, TURNS_SLOTS * sizeof *slots);
}

static void wait_for_ever(void) {
  fill_slots(TURNS_SLOTS, 500 * MS);
}

static void be_there(void) {
  fill_slots(100, 0);
}

static void keep_the_turn(void) {
  fill_slots(1, 0);
  slots[0].turn_ends_ns = model_file_now_ns() + TURNS_LONGEST_NS;
}

/* Gives it up for a moment now and then, and has another process of its own take it. */
static void keep_the_turn_with_gaps(void) {
  int64_t now_ns = model_file_now_ns();
  fill_slots(TURNS_SLOTS, 500 * MS);
  if (now_ns % (60 * MS) > MS)
    slots[now_ns / (60 * MS) % TURNS_SLOTS].turn_ends_ns = now_ns + 2 * MS;
}

/* Only when it is free, and then for a fifth of a second. */
static void take_turns_for_nothing(void) {
  int64_t last_ns = slots[0].turn_ends_ns;
  fill_slots(TURNS_SLOTS, 500 * MS);
  slots[0].turn_ends_ns = last_ns;
  for (int c = 0; c < 2; c++)
    for (int i = 0; i < MODEL_PROCESSES; i++)
      if (model_turns_slots_of(c)[i].turn_ends_ns > model_file_now_ns() || last_ns > model_file_now_ns())
        return;
  slots[0].turn_ends_ns = model_file_now_ns() + 200 * MS;
}

static const struct attack {
  const char *name;
  void (*once)(void);
  int64_t every_ns;
} attacks[] = {
    {"nothing", NULL, S},
    {"random bytes", write_random_bytes, MS},
    {"a random number here and there", write_a_random_number, 300 * US},
    {"cut off", cut_off, MS},
    {"256 wait for ever", wait_for_ever, MS},
    {"100 are there", be_there, MS},
    {"a turn that is kept", keep_the_turn, MS},
    {"a turn that is kept, with gaps", keep_the_turn_with_gaps, 300 * US},
    {"turns for nothing", take_turns_for_nothing, 50 * US},
};

static void run_attack(struct model_process *process) {
  const struct attack *attack = model_argument(process);
  slots = model_turns_slots_of(7);
  for (;;) {
    if (attack->once != NULL)
      attack->once();
    model_think(process, attack->every_ns);
  }
}

static void run_flat_out(struct model_process *process) {
  for (;;)
    model_launch(process, 0, 0, MS);
}

static void measure(struct model_process **tenants, int count, const struct attack *attack, uint32_t its_percent,
                    double *shares) {
  int64_t before_ns[2];
  random_state = 1;
  model_container(7)->percent = its_percent;
  model_start(7, run_attack, attack, S);
  model_run(S);
  for (int i = 0; i < count; i++) {
    before_ns[i] = model_worked_ns(tenants[i]);
    model_forget_stalls(tenants[i]);
  }
  model_run(21 * S);
  for (int i = 0; i < count; i++)
    shares[i] = 100.0 * (double)(model_worked_ns(tenants[i]) - before_ns[i]) / (double)(20 * S);
}

static void check_two(const struct attack *attack, uint32_t its_percent, double least) {
  struct model_process *tenants[2];
  double shares[2];
  model_start_over(4);
  for (int i = 0; i < 2; i++) {
    model_container(i)->percent = 50;
    tenants[i] = model_start(i, run_flat_out, NULL, i * MS);
  }
  measure(tenants, 2, attack, its_percent, shares);
  for (int i = 0; i < 2; i++)
    printf("%s, at %u: %.2f %%, waited %.1f ms at most\n", attack->name, its_percent, shares[i],
           (double)model_longest_launch_ns(tenants[i]) / MS);
  for (int i = 0; i < 2; i++) {
    CHECK(shares[i] < 50.5 && shares[i] > least, "%.2f %%", shares[i]);
    CHECK(model_longest_launch_ns(tenants[i]) < S, "%lld ms", (long long)(model_longest_launch_ns(tenants[i]) / MS));
  }
}

/* The tenant never has more than its limit, and without one at least half of what the liar's limit leaves. */
static void check_one(uint32_t percent, uint32_t policy, uint32_t its_percent, double least, double most) {
  for (int i = 0; i < (int)(sizeof attacks / sizeof *attacks); i++) {
    double share;
    model_start_over(4);
    model_container(0)->percent = percent;
    model_container(0)->policy = policy;
    struct model_process *process = model_start(0, run_flat_out, NULL, 0);
    measure(&process, 1, &attacks[i], its_percent, &share);
    printf("one at %u, %s: %.2f %%, waited %.1f ms at most\n", percent, attacks[i].name, share,
           (double)model_longest_launch_ns(process) / MS);
    CHECK(share > least && share < most, "%.2f %%", share);
    CHECK(model_longest_launch_ns(process) < S, "%lld ms", (long long)(model_longest_launch_ns(process) / MS));
  }
}

static void check_two_under_each_attack(void) {
  for (int i = 0; i < (int)(sizeof attacks / sizeof *attacks); i++) {
    check_two(&attacks[i], 1, 45);
    check_two(&attacks[i], 40, 25);
  }
}

static void run_short_ones(struct model_process *process) {
  for (;;)
    model_launch(process, 0, 0, 50 * US);
}

/* The liar has high priority, which goes first where it does use the GPU. */
static void check_low_priority(void) {
  for (int i = 0; i < (int)(sizeof attacks / sizeof *attacks); i++) {
    double share;
    model_start_over(4);
    model_container(0)->percent = 80;
    model_container(0)->priority = VGPU_PRIORITY_LOW;
    struct model_process *process = model_start(0, run_short_ones, NULL, 0);
    measure(&process, 1, &attacks[i], 1, &share);
    printf("low priority at 80, %s: %.2f %%\n", attacks[i].name, share);
    CHECK(share > 70 && share < 80.5, "%.2f %%", share);
  }
}

/* ---- thousands of folders ---------------------------------------------------------------------------------------- */

static void run_one_by_one(struct model_process *process) {
  for (;;) {
    model_launch(process, 0, 0, MS);
    model_synchronize(process, 0);
  }
}

static void run_ten_by_ten(struct model_process *process) {
  for (;;) {
    for (int i = 0; i < 10; i++)
      model_launch(process, 0, 0, MS);
    model_synchronize(process, 0);
  }
}

static void measure_beside(int64_t look_ns, model_program *program, double *shares) {
  static const uint32_t percents[] = {75, 25};
  struct model_process *tenants[2];
  model_start_over(4);
  model_set_look(look_ns);
  for (int i = 0; i < 2; i++) {
    model_container(i)->percent = percents[i];
    tenants[i] = model_start(i, program, NULL, i * MS);
  }
  model_run(20 * S);
  for (int i = 0; i < 2; i++)
    shares[i] = 100.0 * (double)model_worked_ns(tenants[i]) / (double)(20 * S);
}

/* Each look takes as long as it may. */
static void check_shares_beside_many(void) {
  static model_program *const programs[] = {run_flat_out, run_short_ones, run_one_by_one, run_ten_by_ten};
  for (int i = 0; i < (int)(sizeof programs / sizeof *programs); i++) {
    double before[2], beside[2];
    measure_beside(0, programs[i], before);
    measure_beside(200 * US, programs[i], beside);
    printf("program %d: %.2f and %.2f %%, beside many %.2f and %.2f %%\n", i, before[0], before[1], beside[0],
           beside[1]);
    for (int t = 0; t < 2; t++)
      CHECK(beside[t] > before[t] - 1 && beside[t] < before[t] + 1, "%.2f %%", beside[t]);
  }
}

int main(int count, char **names) {
  cases_begin(count, names);
  CASE("two") check_two_under_each_attack();
  CASE("one with a limit") check_one(20, VGPU_SM_HARD, VGPU_NO_SM_LIMIT, 10, 20.5);
  CASE("one without a limit") check_one(VGPU_NO_SM_LIMIT, VGPU_SM_HARD, 50, 25, 100.01);
  CASE("one that may burst") check_one(20, VGPU_SM_BURST, 50, 20, 100.01);
  CASE("low priority") check_low_priority();
  CASE("thousands of folders") check_shares_beside_many();
  return cases_end();
}
