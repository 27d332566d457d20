/*
 * Strangers damage the file of the turns, each for twenty seconds, while two tenants at 50 use the GPU flat out, on
 * simulated time: nobody exceeds its limit, nobody gets less than half of it, and no launch waits for a second.
 */
#include "cases.h"
#include "check.h"
#include "gpu_model.h"
#include "turns/turns.h"

#include <stdlib.h>
#include <string.h>

#define FIRST 20 /* slot of the strangers' */

static unsigned random_state;

static void fill_slots(int count, int64_t waits_ns) {
  int64_t now_ns = model_file_now_ns();
  for (int i = FIRST; i < FIRST + count; i++)
    model_turns_file()->slots[i] = (struct turns_slot){
        .ticket_ns = waits_ns > 0 ? now_ns - waits_ns : 0,
        .seen_ns = now_ns,
        .terms = {.tenant = 1000 + (uint64_t)i, .percent = VGPU_NO_SM_LIMIT, .priority = VGPU_PRIORITY_HIGH}};
}

static void write_random_bytes(void) {
  unsigned char *bytes = (unsigned char *)model_turns_file();
  for (size_t i = 0; i < sizeof(struct turns_file); i++)
    bytes[i] = (unsigned char)rand_r(&random_state);
}

static void write_a_random_number(void) {
  size_t place = (size_t)rand_r(&random_state) % (sizeof(struct turns_file) / 8) * 8;
  int64_t number = rand_r(&random_state) % 2 ? model_file_now_ns() : 0x7f7f7f7f7f7f7f7f;
  memcpy((char *)model_turns_file() + (random_state % 3 == 0 ? 0 : place), &number, sizeof number);
}

static void cut_off(void) {
  memset(model_turns_file(), 0, sizeof(struct turns_file));
}

static void wait_without_lock(void) {
  fill_slots(TURNS_SLOTS - FIRST, 500 * MS);
}

static void wait_for_ever(void) {
  model_hold_slots(true);
  fill_slots(TURNS_SLOTS - FIRST, 500 * MS);
}

static void be_there(void) {
  model_hold_slots(true);
  fill_slots(100, 0);
}

static void keep_the_turn(void) {
  model_hold_slots(true);
  fill_slots(1, 0);
  model_turns_file()->slots[FIRST].turn_ends_ns = model_file_now_ns() + TURNS_LONGEST_NS;
}

/* Only when it is free, and then each of them for a fifth of a second. */
static void take_turns_for_nothing(void) {
  model_hold_slots(true);
  fill_slots(TURNS_SLOTS - FIRST, 500 * MS);
  for (int i = 0; i < TURNS_SLOTS; i++)
    if (model_turns_file()->slots[i].turn_ends_ns > model_file_now_ns())
      return;
  model_turns_file()->slots[FIRST + rand_r(&random_state) % 200].turn_ends_ns = model_file_now_ns() + 200 * MS;
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
    {"236 wait without a lock", wait_without_lock, MS},
    {"236 wait for ever", wait_for_ever, MS},
    {"100 are there", be_there, MS},
    {"a turn that is kept", keep_the_turn, MS},
    {"236 take turns for nothing", take_turns_for_nothing, 50 * US},
};

static void run_attack(struct model_process *process) {
  const struct attack *attack = model_argument(process);
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

static void measure(struct model_process **tenants, int count, const struct attack *attack, int64_t length_ns,
                    double *shares) {
  int64_t before_ns[2];
  random_state = 1;
  model_container(7)->percent = 1;
  model_start(7, run_attack, attack, S);
  model_run(S);
  for (int i = 0; i < count; i++) {
    before_ns[i] = model_worked_ns(tenants[i]);
    model_forget_stalls(tenants[i]);
  }
  model_run(S + length_ns);
  for (int i = 0; i < count; i++)
    shares[i] = 100.0 * (double)(model_worked_ns(tenants[i]) - before_ns[i]) / (double)length_ns;
}

static void check_two(const struct attack *attack) {
  struct model_process *tenants[2];
  double shares[2];
  model_start_over(4);
  for (int i = 0; i < 2; i++) {
    model_container(i)->percent = 50;
    tenants[i] = model_start(i, run_flat_out, NULL, i * MS);
  }
  measure(tenants, 2, attack, 20 * S, shares);
  for (int i = 0; i < 2; i++)
    printf("%s: %.2f %%, waited %.1f ms at most\n", attack->name, shares[i],
           (double)model_longest_launch_ns(tenants[i]) / MS);
  for (int i = 0; i < 2; i++) {
    CHECK(shares[i] < 50.5 && shares[i] > 25, "%.2f %%", shares[i]);
    CHECK(model_longest_launch_ns(tenants[i]) < S, "%lld ms", (long long)(model_longest_launch_ns(tenants[i]) / MS));
  }
}

/* A share that depends on the others': with a limit it is never more, and without one never less than a 17th. */
static void check_one(uint32_t percent, uint32_t policy, double least, double most) {
  for (int i = 0; i < (int)(sizeof attacks / sizeof *attacks); i++) {
    double share;
    model_start_over(4);
    model_container(0)->percent = percent;
    model_container(0)->policy = policy;
    struct model_process *process = model_start(0, run_flat_out, NULL, 0);
    measure(&process, 1, &attacks[i], 20 * S, &share);
    printf("one at %u, %s: %.2f %%\n", percent, attacks[i].name, share);
    CHECK(share > least && share < most, "%.2f %%", share);
  }
}

static void check_two_under_each_attack(void) {
  for (int i = 0; i < (int)(sizeof attacks / sizeof *attacks); i++)
    check_two(&attacks[i]);
}

int main(int count, char **names) {
  cases_begin(count, names);
  CASE("two") check_two_under_each_attack();
  CASE("one with a limit") check_one(20, VGPU_SM_HARD, 10, 20.5);
  CASE("one without a limit") check_one(VGPU_NO_SM_LIMIT, VGPU_SM_HARD, 7.5, 100.01); /* 5.6 if all counted */
  CASE("one that may burst") check_one(20, VGPU_SM_BURST, 5, 100.01);
  return cases_end();
}
