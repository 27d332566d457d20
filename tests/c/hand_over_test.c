/*
 * The hand-over of turns in every order of its steps, with at most so many switches between the processes that nobody
 * asked for, and one of them killed between any two steps. A step is one access to a file. Time
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
#define MOST_LOOKS 4

#define STRANGER MOST

/* In each file: the processes are the first of a tenant each, and a stranger has a file of its own. */
static struct turns_slot files[MOST + 1][TURNS_SLOTS];

struct process {
  ucontext_t context;
  struct turns turns;
  int times;     /* that it takes the turn */
  bool believes; /* that the turn is its own */
  bool ended, dead;
  int64_t wakes_at_ns; /* 0: does not wait */
  int64_t longest_wait_ns;
  int looks, looks_in_all;
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

static void sleep_until(int64_t wakes_at_ns) {
  processes[current].wakes_at_ns = wakes_at_ns;
  processes[current].looks = 0;
  hand_over();
}

static void sleep_for(int64_t duration_ns) {
  sleep_until(now_ns + duration_ns);
}

/* A tenant that looks again and again lets time pass by that. */
static int64_t now(void) {
  processes[current].looks_in_all++;
  if (++processes[current].looks > MOST_LOOKS)
    sleep_for(100000);
  return now_ns;
}

/* The own file comes first, then the others'. */
static int file_of(int number, int tenant) {
  return tenant == 0 ? number : tenant <= number ? tenant - 1 : tenant;
}

static int look(void *process, struct turns_tenant *tenants, int known) {
  int number = (int)((struct process *)process - processes);
  for (int i = 0; i <= MOST; i++)
    if (i == 0 || i >= known)
      tenants[i] = (struct turns_tenant){.id = (uint64_t)file_of(number, i), .terms = {.percent = 50}};
  return MOST + 1;
}

static int read_slots(void *process, int tenant, struct turns_slot *slots) {
  int file = file_of((int)((struct process *)process - processes), tenant);
  if (tenant > 0 && file < count) /* nobody else writes the others */
    hand_over();
  memcpy(slots, files[file], sizeof files[0]);
  return TURNS_SLOTS;
}

static void write_slot(void *process, int slot, const struct turns_slot *own) {
  hand_over();
  files[(struct process *)process - processes][slot] = *own;
}

static int keep(void *files, struct turns_tenant *tenants, int count) {
  (void)files, (void)tenants;
  return count;
}

static const struct turns_system stepping = {now, sleep_for, keep, look, read_slots, write_slot};

/* Nobody else may believe so: it is at work, and has said until when. */
static void work(struct process *process) {
  for (int i = 0; i < count; i++)
    CHECK(tampered || &processes[i] == process || processes[i].dead || !processes[i].believes,
          "%s: two hold the turn at %lld us", case_name, (long long)now_ns / 1000);
  process->believes = true;
  turns_note_activity(&process->turns, now_ns + WORK_NS);
  sleep_for(WORK_NS);
  process->believes = false;
}

/* The stranger hands the turn to ever new slots of its own, which are soon to pass it. */
static void disturb(void) {
  for (int64_t until_ns = now_ns + 1500 * MS; now_ns < until_ns; sleep_for(200000)) {
    int slot = (int)(now_ns / MS % 100);
    files[STRANGER][slot].seen_ns = now_ns;
    files[STRANGER][slot].turn_ends_ns = now_ns + TURNS_GRACE_NS + 200000;
  }
}

static void ask(struct turns *turns) {
  (void)turns_refresh(turns);
  (void)turns_must_pass(turns, WORK_NS);
  for (uint32_t percent = 0; percent <= 100; percent += 50) {
    uint32_t share = turns_share_percent(turns, &(struct turns_terms){.percent = percent, .policy = VGPU_SM_BURST});
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
    turns_take(&process->turns);
    if (now_ns - began_ns > process->longest_wait_ns)
      process->longest_wait_ns = now_ns - began_ns;
    work(process);
    turns_pass(&process->turns);
  }
  process->ended = true;
}

static void start_process(int i, int times) {
  struct process *process = &processes[i];
  *process = (struct process){.times = times};
  process->turns = (struct turns){.system = &stepping, .files = process, .terms = {.percent = 50}, .tenants_count = 1};
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
      processes[i].wakes_at_ns = 0;
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

static void check(struct turns_slot content[][TURNS_SLOTS], int processes_count, int times, int switches, int kills,
                  int64_t longest_wait_ns) {
  long runs = 0;
  int64_t longest_ns = 0;
  count = processes_count;
  explored_depth = 0;
  do {
    memcpy(files, content, sizeof files);
    run(times, switches, kills);
    for (int i = 0; i < count; i++) {
      const struct process *process = &processes[i];
      if (process->dead)
        continue;
      longest_ns = process->longest_wait_ns > longest_ns ? process->longest_wait_ns : longest_ns;
      CHECK(process->longest_wait_ns <= longest_wait_ns, "%s: %d waited %lld us", case_name, i,
            (long long)process->longest_wait_ns / 1000);
      CHECK(tampered || files[i][0].turn_ends_ns <= now_ns, "%s: kept after it was passed", case_name);
    }
    runs++;
  } while (explore_go_back());
  printf("%s: %ld runs, waited %.1f ms at most\n", case_name, runs, (double)longest_ns / MS);
}

static struct turns_slot (*no_content(void))[TURNS_SLOTS] {
  static struct turns_slot content[MOST + 1][TURNS_SLOTS];
  memset(content, 0, sizeof content);
  return content;
}

static void check_damaged_content(void) {
  unsigned seed = 3;
  for (int round = 0; round < 12; round++) {
    struct turns_slot(*content)[TURNS_SLOTS] = no_content();
    for (size_t i = 0; i < sizeof content[0]; i++)
      ((unsigned char *)content[STRANGER])[i] = (unsigned char)(round == 0 ? 0xff : round == 1 ? 0x7f : rand_r(&seed));
    check(content, 1, 2, 0, 0, TURNS_PATIENCE_NS + 10 * MS);
  }
}

/* Held by one that is there. */
static void check_long_turn(int64_t turn_ns, int64_t wait_ns) {
  struct turns_slot(*content)[TURNS_SLOTS] = no_content();
  content[STRANGER][200] = (struct turns_slot){.seen_ns = START_NS, .turn_ends_ns = START_NS + turn_ns};
  check(content, 2, 1, 0, 0, wait_ns);
}

/* Each number that stands there, and all the others. */
static void check_extremes(void) {
  static const int64_t extremes[] = {INT64_MIN, INT64_MIN + 1, -1, 0, START_NS, INT64_MAX - 1, INT64_MAX};
  const int count_of_them = sizeof extremes / sizeof extremes[0];
  curious = true;
  for (int i = 0; i < 3 * count_of_them * count_of_them; i++) {
    struct turns_slot(*content)[TURNS_SLOTS] = no_content(), *slot = &content[STRANGER][1];
    int64_t *numbers[] = {&slot->ticket_ns, &slot->seen_ns, &slot->turn_ends_ns};
    for (int each = 0; each < 3; each++)
      *numbers[each] = extremes[each == i % 3 ? i / 3 % count_of_them : i / 3 / count_of_them];
    check(content, 1, 1, 0, 0, TURNS_PATIENCE_NS + 10 * MS);
  }
  curious = false;
}

/* How much a stranger takes in the long run: strangers_test.c. */
static void check_disturbance(void) {
  tampered = true;
  check(no_content(), 2, 20, 0, 0, TURNS_PATIENCE_NS + 10 * MS);
  CHECK(processes[0].looks_in_all < 60000, "looked %d times", processes[0].looks_in_all);
  tampered = false;
}

int main(int argument_count, char **arguments) {
  cases_begin(argument_count, arguments);
  static struct turns_slot fresh[MOST + 1][TURNS_SLOTS];
  for (int i = 0; i < MOST; i++) /* they know of each other */
    fresh[i][0].seen_ns = START_NS;
  /* A killed tenant is passed over soon after its work was to end. */
  CASE("two processes") check(fresh, 2, 2, 3, 0, 10 * MS);
  CASE("two processes, one killed") check(fresh, 2, 2, 2, 1, 10 * MS);
  CASE("three processes") check(fresh, 3, 1, 2, 0, 10 * MS);
  CASE("three processes, one killed") check(fresh, 3, 1, 1, 1, 10 * MS);
  CASE("damaged content") check_damaged_content();
  CASE("a turn for longer than anybody may") check_long_turn(1000000 * MS, 3 * MS);
  CASE("a turn for as long as may be believed")
  check_long_turn(2 * TURNS_LONGEST_NS - MS, 2 * TURNS_LONGEST_NS + 3 * MS);
  CASE("extreme numbers") check_extremes();
  CASE("a turn that is never free") check_disturbance();
  return cases_end();
}
