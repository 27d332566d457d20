/*
 * The hand-over of turns in every order of its steps, with at most so many switches between the processes that nobody
 * asked for, and one of them killed between any two steps. A step is one access to what they share. The code is turns.c
 * itself: its atomic operations are replaced by ones that hand over to the scheduler first. Time passes only while all
 * of them wait.
 */
#include "abi.h"
#include "check.h"
#include "clock.h"
#include "explore.h"
#include "turns.h"

#include <string.h>
#include <ucontext.h>

static void step(const void *address);
static void step_to_load(const void *address);

#define __atomic_load_n(address, order) (step_to_load(address), *(address))
#define __atomic_store_n(address, value, order) (step(address), (void)(*(address) = (value)))
#define __atomic_add_fetch(address, value, order) (step(address), *(address) += (value))
#define __atomic_compare_exchange_n(address, expected, value, weak, success, failure)                                  \
  (step(address), *(address) == *(expected) ? (*(address) = (value), true) : (*(expected) = *(address), false))

#include "turns.c"

#undef __atomic_load_n

#define MS 1000000LL
#define MOST 3
#define STACK_BYTES 65536
#define WORK_NS MS
#define MOST_LOOKS 8

static struct turns_file file;

struct process {
  ucontext_t context;
  struct turns turns;
  int times;     /* that it takes the turn */
  bool believes; /* that the turn is its own */
  bool ended, dead;
  int64_t wakes_at_ns; /* 0: does not wait */
  bool wakes_early;    /* when the futex is woken */
  int64_t longest_wait_ns, total_wait_ns;
  int without, looks;
};

static struct process processes[MOST];
static char stacks[MOST][STACK_BYTES];
static ucontext_t scheduler;
static int current, count;
static int64_t now_ns;
static bool tampered; /* with what is in the file: then only the bounds hold */
static const char *scenario;

static void hand_over(void) {
  swapcontext(&processes[current].context, &scheduler);
}

/* What makes a difference: who holds the turn, who waits, and until when the holder is to be left alone. */
static void step(const void *address) {
  const struct turns_slot *slot = (const struct turns_slot *)address;
  bool matters = address == &file.turn || address == &file.wake || address == &file.free_since_ns;
  for (int i = 0; i < count && !matters; i++) {
    slot = &file.slots[i];
    matters = address == &slot->ticket || address == &slot->idle_at_ns || address == &slot->slice_end_ns;
  }
  if (matters)
    hand_over();
}

/* Nobody else writes our slot. */
static void step_to_load(const void *address) {
  const char *own_slot = (const char *)&file.slots[current];
  if ((const char *)address < own_slot || (const char *)address >= own_slot + sizeof file.slots[0])
    step(address);
}

static void sleep_until(int64_t wakes_at_ns, bool early) {
  processes[current].wakes_at_ns = wakes_at_ns;
  processes[current].wakes_early = early;
  processes[current].looks = 0;
  hand_over();
}

/* Who looks again and again lets time pass with that. */
static int64_t now(void) {
  if (++processes[current].looks > MOST_LOOKS)
    sleep_until(now_ns + 10000, false);
  return now_ns;
}

static void wait_on(uint32_t *word, uint32_t expected, int64_t duration_ns) {
  hand_over();
  if (*word == expected)
    sleep_until(now_ns + duration_ns, true);
}

static void wake_waiting(uint32_t *word) {
  (void)word;
  hand_over();
  for (int i = 0; i < count; i++)
    if (processes[i].wakes_early)
      processes[i].wakes_at_ns = 0;
}

static const struct turns_clock stepping_clock = {now, wait_on, wake_waiting};

/* Nobody else may believe so: it is at work, and has said until when. */
static void work(struct process *process) {
  for (int i = 0; i < count; i++)
    CHECK(tampered || &processes[i] == process || processes[i].dead || !processes[i].believes,
          "%s: two hold the turn at %lld us", scenario, (long long)now_ns / 1000);
  process->believes = true;
  turns_note_activity(&process->turns, now_ns + WORK_NS);
  sleep_until(now_ns + WORK_NS, false);
  process->believes = false;
}

/* Hands the turn to ever new slots that nobody has, with the best of excuses. */
static void disturb(void) {
  for (int64_t until_ns = now_ns + 5000 * MS; now_ns < until_ns; sleep_until(now_ns + 5 * MS, false)) {
    int slot = MOST + (int)(now_ns / MS % 100);
    file.slots[slot].idle_at_ns = file.slots[slot].slice_end_ns = INT64_MAX;
    file.turn = next_turn(file.turn, slot);
  }
}

static void live(void) {
  struct process *process = &processes[current];
  if (tampered && current == 1)
    disturb();
  while (process->times-- > 0) {
    int64_t began_ns = now_ns;
    bool ours = turns_take(&process->turns);
    process->total_wait_ns += now_ns - began_ns;
    if (now_ns - began_ns > process->longest_wait_ns)
      process->longest_wait_ns = now_ns - began_ns;
    if (!ours)
      process->without++;
    else {
      work(process);
      turns_pass(&process->turns);
    }
  }
  process->ended = true;
}

static void start_process(int i, int times) {
  struct process *process = &processes[i];
  *process = (struct process){.times = times};
  process->turns = (struct turns){.file = &file, .slot = i, .clock = &stepping_clock};
  getcontext(&process->context);
  process->context.uc_stack.ss_sp = stacks[i];
  process->context.uc_stack.ss_size = STACK_BYTES;
  process->context.uc_link = &scheduler;
  makecontext(&process->context, live, 0);
}

static void start(int times) {
  now_ns = 5000000 * MS;
  for (int i = 0; i < count; i++)
    start_process(i, times);
}

static bool lives(int i) {
  return !processes[i].ended && !processes[i].dead;
}

/* When all wait, the clock goes to where the first one wakes. False when nobody lives. */
static bool let_time_pass(void) {
  int64_t first_ns = INT64_MAX;
  for (int i = 0; i < count; i++)
    if (lives(i) && processes[i].wakes_at_ns < first_ns)
      first_ns = processes[i].wakes_at_ns;
  if (first_ns == INT64_MAX)
    return false;
  now_ns = first_ns > now_ns ? first_ns : now_ns;
  for (int i = 0; i < count; i++)
    if (processes[i].wakes_at_ns <= now_ns)
      processes[i].wakes_at_ns = processes[i].wakes_early = 0;
  return true;
}

/* A choice is a process that does a step or, past MOST, one that is killed. */
static unsigned possible_choices(int switches, int kills) {
  unsigned choices = 0;
  bool goes_on = lives(current) && processes[current].wakes_at_ns == 0;
  for (int i = 0; i < count; i++) {
    if (lives(i) && processes[i].wakes_at_ns == 0 && (!goes_on || i == current || switches > 0))
      choices |= 1u << i;
    if (lives(i) && kills > 0)
      choices |= 1u << (MOST + i);
  }
  return choices;
}

static void run(int times, int switches, int kills) {
  start(times);
  current = 0;
  for (int at = 0; let_time_pass(); at++) {
    int choice = explore_choose(at, possible_choices(switches, kills));
    int process = choice % MOST;
    if (choice >= MOST) {
      kills--;
      processes[process].dead = true;
      continue;
    }
    switches -= process != current && lives(current) && processes[current].wakes_at_ns == 0;
    current = process;
    swapcontext(&scheduler, &processes[process].context);
  }
}

struct bounds {
  int64_t wait_ns;
  bool all_get_it;
};

static void check(const char *name, const struct turns_file *content, int processes_count, int times, int switches,
                  int kills, struct bounds bounds) {
  long runs = 0;
  int64_t longest_ns = 0;
  scenario = name;
  count = processes_count;
  explored_depth = 0;
  do {
    file = *content;
    run(times, switches, kills);
    for (int i = 0; i < count; i++) {
      const struct process *process = &processes[i];
      if (process->dead)
        continue;
      longest_ns = process->longest_wait_ns > longest_ns ? process->longest_wait_ns : longest_ns;
      CHECK(process->longest_wait_ns <= bounds.wait_ns, "%s: %d waited %lld us", name, i,
            (long long)process->longest_wait_ns / 1000);
      CHECK(!bounds.all_get_it || process->without == 0, "%s: %d did not get the turn", name, i);
    }
    CHECK(tampered || kills > 0 || holder_of(file.turn) < 0, "%s: kept after it was passed", name);
    runs++;
  } while (explore_go_back());
  printf("%s: %ld runs, waited %.1f ms at most\n", name, runs, (double)longest_ns / MS);
}

static void check_damaged_content(void) {
  struct turns_file content;
  const struct bounds patience = {TURNS_PATIENCE_NS + 10 * MS, false};
  unsigned seed = 3;
  for (int round = 0; round < 12; round++) {
    for (size_t i = 0; i < sizeof content; i++)
      ((unsigned char *)&content)[i] = (unsigned char)(round == 0 ? 0xff : round == 1 ? 0x7f : rand_r(&seed));
    check("damage", &content, 1, 2, 0, 0, patience);
  }
  /* Held by one that says of itself that it may go on for ever. */
  memset(&content, 0, sizeof content);
  content.slots_used = TURNS_SLOTS;
  content.turn = next_turn(0, 200);
  content.slots[200].idle_at_ns = content.slots[200].slice_end_ns = INT64_MAX;
  const struct bounds overstay = {TURNS_SLICE_NS + TURNS_OVERSTAY_NS + MS, true};
  check("a turn for ever", &content, 2, 1, 0, 0, overstay);
}

/* Who never gets the turn waits for it once, and then goes ahead for a while. */
static void check_disturbance(void) {
  struct turns_file content = {.slots_used = TURNS_SLOTS};
  tampered = true;
  check("a turn that is never free", &content, 2, 20, 0, 0, (struct bounds){TURNS_PATIENCE_NS + 10 * MS, false});
  CHECK(processes[0].total_wait_ns < TURNS_PATIENCE_NS + 20 * MS, "waited %lld ms in all",
        (long long)(processes[0].total_wait_ns / MS));
  tampered = false;
}

int main(void) {
  struct turns_file fresh = {.slots_used = 2};
  /* Who is killed is passed over soon after its work was to end. */
  const struct bounds prompt = {10 * MS, true};
  check("two processes", &fresh, 2, 2, 3, 0, prompt);
  check("two processes, one killed", &fresh, 2, 2, 2, 1, prompt);
  fresh.slots_used = 3;
  check("three processes", &fresh, 3, 1, 2, 0, prompt);
  check("three processes, one killed", &fresh, 3, 1, 1, 1, prompt);
  check_damaged_content();
  check_disturbance();
  return 0;
}
