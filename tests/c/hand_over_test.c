/*
 * The hand-over of turns in every order of its steps, with at most so many switches between the processes that nobody
 * asked for, and one of them killed between any two steps. A step is one access to the file that they share. Time
 * passes only while all of them wait.
 */
#include "abi.h"
#include "cases.h"
#include "check.h"
#include "explore.h"
#include "turns/turns.h"

#include <stdlib.h>
#include <string.h>
#include <ucontext.h>

#define MS 1000000LL
#define MOST 3
#define STACK_BYTES 65536
#define WORK_NS MS
#define START_NS (5000000 * MS)
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
  int without, looks, looks_in_all;
};

static struct process processes[MOST];
static char stacks[MOST][STACK_BYTES];
static ucontext_t scheduler;
static int current, count;
static int64_t now_ns;
static bool curious;  /* they ask all that there is to be asked */
static bool tampered; /* with what is in the file: then only the bounds hold */

static void hand_over(void) {
  swapcontext(&processes[current].context, &scheduler);
}

static void sleep_until(int64_t wakes_at_ns, bool early) {
  processes[current].wakes_at_ns = wakes_at_ns;
  processes[current].wakes_early = early;
  processes[current].looks = 0;
  hand_over();
}

/* A tenant that looks again and again lets time pass by that. */
static int64_t now(void) {
  processes[current].looks_in_all++;
  if (++processes[current].looks > MOST_LOOKS)
    sleep_until(now_ns + 10000, false);
  return now_ns;
}

static bool read_shared(void *shared, void *to, size_t size, size_t at) {
  hand_over();
  memcpy(to, (char *)shared + at, size);
  return true;
}

static void write_shared(void *shared, const void *from, size_t size, size_t at) {
  hand_over();
  memcpy((char *)shared + at, from, size);
}

static bool is_held(void *shared, int slot) {
  (void)shared;
  return slot >= count || !processes[slot].dead;
}

static void wait_on(void *shared, uint32_t expected, int64_t duration_ns, bool awake) {
  (void)shared, (void)awake;
  hand_over();
  if (file.wake == expected)
    sleep_until(now_ns + duration_ns, true);
}

static void wake_waiting(void *shared) {
  (void)shared;
  hand_over();
  for (int i = 0; i < count; i++)
    if (processes[i].wakes_early)
      processes[i].wakes_at_ns = 0;
}

static const struct turns_system stepping = {now, read_shared, write_shared, is_held, wait_on, wake_waiting};

/* Nobody else may believe so: it is at work, and has said until when. */
static void work(struct process *process) {
  for (int i = 0; i < count; i++)
    CHECK(tampered || &processes[i] == process || processes[i].dead || !processes[i].believes,
          "%s: two hold the turn at %lld us", case_name, (long long)now_ns / 1000);
  process->believes = true;
  turns_note_activity(&process->turns, now_ns + WORK_NS);
  sleep_until(now_ns + WORK_NS, false);
  process->believes = false;
}

/* Hands the turn to ever new slots, which are held, and soon to pass it. */
static void disturb(void) {
  for (int64_t until_ns = now_ns + 1500 * MS; now_ns < until_ns; sleep_until(now_ns + 200000, false)) {
    int slot = MOST + (int)(now_ns / MS % 100);
    file.slots[slot].seen_ns = now_ns;
    file.slots[slot].turn_ends_ns = now_ns + TURNS_GRACE_NS + 200000;
    file.wake++;
  }
}

static void ask(struct turns *turns) {
  (void)turns_look(turns);
  (void)turns_must_pass(turns, WORK_NS);
  for (uint32_t percent = 0; percent <= 100; percent += 50) {
    const struct turns_terms terms = {.percent = percent, .policy = VGPU_SM_BURST};
    uint32_t share = turns_share_percent(turns, &terms);
    CHECK(share >= 1 && share <= 100, "%u", share);
  }
}

static void live(void) {
  struct process *process = &processes[current];
  if (curious)
    ask(&process->turns);
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
  process->turns = (struct turns){.system = &stepping, .file = &file, .slot = i};
  getcontext(&process->context);
  process->context.uc_stack.ss_sp = stacks[i];
  process->context.uc_stack.ss_size = STACK_BYTES;
  process->context.uc_link = &scheduler;
  makecontext(&process->context, live, 0);
}

static void start(int times) {
  now_ns = START_NS;
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

static void check(const struct turns_file *content, int processes_count, int times, int switches, int kills,
                  struct bounds bounds) {
  long runs = 0;
  int64_t longest_ns = 0;
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
      CHECK(process->longest_wait_ns <= bounds.wait_ns, "%s: %d waited %lld us", case_name, i,
            (long long)process->longest_wait_ns / 1000);
      CHECK(!bounds.all_get_it || process->without == 0, "%s: %d did not get the turn", case_name, i);
    }
    for (int i = 0; i < count; i++)
      CHECK(tampered || processes[i].dead || file.slots[i].turn_ends_ns <= now_ns, "%s: kept after it was passed",
            case_name);
    runs++;
  } while (explore_go_back());
  printf("%s: %ld runs, waited %.1f ms at most\n", case_name, runs, (double)longest_ns / MS);
}

static void check_damaged_content(void) {
  struct turns_file content;
  const struct bounds patience = {TURNS_PATIENCE_NS + 10 * MS, false};
  unsigned seed = 3;
  for (int round = 0; round < 12; round++) {
    for (size_t i = 0; i < sizeof content; i++)
      ((unsigned char *)&content)[i] = (unsigned char)(round == 0 ? 0xff : round == 1 ? 0x7f : rand_r(&seed));
    check(&content, 1, 2, 0, 0, patience);
  }
}

/* Held by one that is there. */
static void check_long_turn(int64_t turn_ns, int64_t wait_ns) {
  struct turns_file content = {0};
  content.slots[200].seen_ns = START_NS;
  content.slots[200].turn_ends_ns = START_NS + turn_ns;
  check(&content, 2, 1, 0, 0, (struct bounds){wait_ns, true});
}

/* Each number that stands there, and all the others. */
static void check_extremes(void) {
  static const int64_t extremes[] = {INT64_MIN, INT64_MIN + 1, -1, 0, START_NS, INT64_MAX - 1, INT64_MAX};
  const int count_of_them = sizeof extremes / sizeof extremes[0];
  const struct bounds patience = {TURNS_PATIENCE_NS + 10 * MS, false};
  curious = true;
  for (int i = 0; i < 4 * count_of_them * count_of_them; i++) {
    struct turns_file content = {0};
    struct turns_slot *slot = &content.slots[1];
    int64_t *numbers[] = {&slot->ticket_ns, &slot->seen_ns, (int64_t *)&slot->terms.percent, &slot->turn_ends_ns};
    for (int each = 0; each < 4; each++)
      *numbers[each] = extremes[each == i % 4 ? i / 4 % count_of_them : i / 4 / count_of_them];
    slot->terms.tenant = 7;
    check(&content, 1, 1, 0, 0, patience);
  }
  curious = false;
}

/* A tenant that never gets the turn waits for it once, and then goes ahead for a while. */
static void check_disturbance(void) {
  struct turns_file content = {0};
  tampered = true;
  check(&content, 2, 20, 0, 0, (struct bounds){TURNS_PATIENCE_NS + 10 * MS, false});
  CHECK(processes[0].total_wait_ns < TURNS_PATIENCE_NS + 20 * MS, "waited %lld ms in all",
        (long long)(processes[0].total_wait_ns / MS));
  CHECK(processes[0].looks_in_all < 60000, "looked %d times", processes[0].looks_in_all);
  tampered = false;
}

int main(int argument_count, char **arguments) {
  cases_begin(argument_count, arguments);
  struct turns_file fresh = {0};
  for (int i = 0; i < MOST; i++) /* they know of each other */
    fresh.slots[i].seen_ns = START_NS;
  /* A killed tenant is passed over soon after its work was to end. */
  const struct bounds prompt = {10 * MS, true};
  CASE("two processes") check(&fresh, 2, 2, 3, 0, prompt);
  CASE("two processes, one killed") check(&fresh, 2, 2, 2, 1, prompt);
  CASE("three processes") check(&fresh, 3, 1, 2, 0, prompt);
  CASE("three processes, one killed") check(&fresh, 3, 1, 1, 1, prompt);
  CASE("damaged content") check_damaged_content();
  CASE("a turn for longer than anybody may") check_long_turn(1000000 * MS, 3 * MS);
  CASE("a turn for as long as may be believed")
  check_long_turn(2 * TURNS_LONGEST_NS - MS, 2 * TURNS_LONGEST_NS + 3 * MS);
  CASE("extreme numbers") check_extremes();
  CASE("a turn that is never free") check_disturbance();
  return cases_end();
}
