/*
 * Processes that reserve and release memory, run step by step in every order there is, with at most so many switches
 * between them that nobody asked for. A step is one access to the usage file, or the time for which memory is held. One
 * process may be killed between any two steps, or erase what the others say.
 */
#include "abi.h"
#include "base/clock.h"
#include "cases.h"
#include "check.h"
#include "explore.h"

#include <string.h>
#include <ucontext.h>

static void wait_a_while(void);

#define clock_sleep_ns(duration_ns) wait_a_while()

#define PROCESSES 3
#define ERASE (-1)   /* in a script: what the file says of all processes */
#define RELEASE (-2) /* all that the process has */
#define ASK_FOR_ALL (-3)
#define MAKE (-4) /* something of MADE_BYTES, which is seen when the driver has made it */
#define UNIT LEDGER_BLOCK_BYTES
#define MADE_BYTES (50 * UNIT)
#define LIMIT_BYTES (100 * UNIT)
#define STACK_BYTES 65536
#define SHARES 2
#define SHARE_LIMIT_BYTES (60 * UNIT) /* limit of a share within the limit */
#define BY_OTHERS_BYTES (4900 * UNIT) /* under a limit so large that processes keep a part of it */

static struct vgpu_usage usage, share_usage[SHARES];

#include "memory/ledger.c"
#include "memory/ledger_totals.c"

/* ---- one run --------------------------------------------------------------------------------------------------- */

struct process {
  ucontext_t context;
  struct ledger_own own;
  struct ledger ledger, above;
  const int *script; /* units to reserve, in turn; all is released at the end; 0: the end */
  uint64_t driver_bytes;
  int refused;
  bool ended, dead, pauses;
};

static struct process processes[PROCESSES];
static char stacks[PROCESSES][STACK_BYTES];
static ucontext_t scheduler;
static int current, count;
static const int *shares; /* each process's; NULL: there are none */
static bool are_kept;     /* bytes above a share: all but the limit is held by another process there */

static void step(void) {
  swapcontext(&processes[current].context, &scheduler);
}

static int reach_file(void *context) {
  (void)context;
  return 0;
}

static bool read_file(void *context, int way, void *to, size_t size, size_t at) {
  (void)way;
  step();
  memcpy(to, (char *)context + at, size);
  return true;
}

static bool write_file(void *context, int way, const void *from, size_t size, size_t at) {
  (void)way;
  step();
  memcpy((char *)context + at, from, size);
  return true;
}

/* The others go on meanwhile. */
static void wait_a_while(void) {
  processes[current].pauses = true;
  swapcontext(&processes[current].context, &scheduler);
  processes[current].pauses = false;
}

static bool slot_is_live(void *context, int slot) {
  struct vgpu_usage *file = context;
  if (slot == PROCESSES)
    return true;
  if (processes[slot].dead)
    memset(&file->processes[slot], 0, sizeof file->processes[slot]);
  return !processes[slot].dead;
}

static const struct ledger_slots slots = {reach_file, read_file, write_file, slot_is_live};

static void driver_takes(struct process *process, uint64_t bytes) {
  uint64_t total = 0, of_shares[SHARES] = {0};
  process->driver_bytes += bytes;
  for (int i = 0; i < count; i++) {
    total += processes[i].driver_bytes;
    if (shares != NULL)
      of_shares[shares[i]] += processes[i].driver_bytes;
  }
  CHECK(total <= LIMIT_BYTES, "%s: %llu bytes", case_name, (unsigned long long)total);
  for (int i = 0; i < SHARES; i++)
    CHECK(of_shares[i] <= SHARE_LIMIT_BYTES, "%s: %llu bytes in %d", case_name, (unsigned long long)of_shares[i], i);
}

static void release_all(struct process *process) {
  uint64_t held_bytes = process->driver_bytes;
  process->driver_bytes = 0;
  ledger_release(&process->ledger, 0, held_bytes);
}

/* Others may not look while it counts twice. */
static void make(struct process *process, const uint64_t limits_bytes[]) {
  struct ledger *ledger = &process->ledger;
  if (ledger_reserve(ledger, 0, MADE_BYTES, limits_bytes).used_bytes == LEDGER_FULL) {
    process->refused++;
    return;
  }
  driver_takes(process, MADE_BYTES);
  struct ledger_snapshot before = ledger_snapshot(ledger, 0);
  ledger_correct(ledger, 0, &before, process->driver_bytes, LEDGER_MADE, MADE_BYTES);
  process->refused += ledger_used(ledger, 0) > limits_bytes[0];
  process->driver_bytes = 0;
  before = ledger_snapshot(ledger, 0);
  ledger_correct(ledger, 0, &before, 0, LEDGER_LOOKED, 0);
}

static void live(void) {
  struct process *process = &processes[current];
  struct ledger *ledger = &process->ledger;
  const uint64_t limits_bytes[] = {shares != NULL ? SHARE_LIMIT_BYTES : LIMIT_BYTES,
                                   are_kept ? BY_OTHERS_BYTES + LIMIT_BYTES : LIMIT_BYTES};
  for (const int *bytes = process->script; *bytes != 0; bytes++) {
    if (*bytes == ERASE) {
      step();
      memset(usage.processes, 0, sizeof usage.processes);
      continue;
    }
    if (*bytes == RELEASE) {
      release_all(process);
      continue;
    }
    if (*bytes == MAKE) {
      make(process, limits_bytes);
      continue;
    }
    if (*bytes == ASK_FOR_ALL) {
      struct ledger_room room = ledger_reserve(ledger, 0, limits_bytes[0], limits_bytes);
      CHECK(room.used_bytes == LEDGER_FULL, "%s: more than there is", case_name);
      continue;
    }
    if (ledger_reserve(ledger, 0, *bytes * UNIT, limits_bytes).used_bytes == LEDGER_FULL) {
      process->refused++;
      continue;
    }
    driver_takes(process, *bytes * UNIT);
    ledger_settle(ledger, 0, *bytes * UNIT, *bytes * UNIT);
    step();
  }
  release_all(process);
  process->ended = true;
}

static void start_process(int i, const int *script) {
  struct process *process = &processes[i];
  *process = (struct process){.script = script};
  process->ledger = (struct ledger){&process->own, &slots, &usage, i, 0, NULL};
  if (shares != NULL) {
    process->ledger.context = &share_usage[shares[i]];
    process->above = (struct ledger){&process->own, &slots, &usage, i, 1, NULL};
    process->ledger.above = &process->above;
  }
  getcontext(&process->context);
  process->context.uc_stack.ss_sp = stacks[i];
  process->context.uc_stack.ss_size = STACK_BYTES;
  process->context.uc_link = &scheduler;
  makecontext(&process->context, live, 0);
}

static void make_file(struct vgpu_usage *file) {
  memset(file, 0, offsetof(struct vgpu_usage, processes[PROCESSES]));
  file->magic = VGPU_USAGE_MAGIC;
  file->abi_version = VGPU_ABI_VERSION;
  file->slots_used = (uint32_t)count;
}

static void start(const int *const *scripts) {
  make_file(&usage);
  if (are_kept) {
    usage.slots_used = PROCESSES + 1;
    usage.processes[PROCESSES].devices[0].counted_bytes = BY_OTHERS_BYTES;
  }
  for (int i = 0; i < SHARES; i++)
    make_file(&share_usage[i]);
  for (int i = 0; i < count; i++)
    start_process(i, scripts[i]);
}

static bool runs(int i) {
  return !processes[i].ended && !processes[i].dead;
}

/* ---- all runs -------------------------------------------------------------------------------------------------- */

/* A choice is a process that does a step or, past PROCESSES, one that is killed. */
static unsigned possible_choices(int switches, int kills) {
  unsigned choices = 0;
  for (int i = 0; i < count; i++) {
    bool free_to_go = !runs(current) || processes[current].pauses;
    if (runs(i) && (free_to_go ? i != current : i == current || switches > 0))
      choices |= 1u << i;
    if (runs(i) && kills > 0)
      choices |= 1u << (PROCESSES + i);
  }
  if (choices == 0 && runs(current))
    choices = 1u << current;
  return choices;
}

static void run(const int *const *scripts, int switches, int kills) {
  start(scripts);
  current = 0;
  unsigned choices;
  for (int at = 0; (choices = possible_choices(switches, kills)) != 0; at++) {
    int choice = explore_choose(at, choices);
    int process = choice % PROCESSES;
    if (choice >= PROCESSES) {
      kills--;
      processes[process].dead = true;
      processes[process].driver_bytes = 0;
      continue;
    }
    switches -= process != current && runs(current) && !processes[current].pauses;
    current = process;
    swapcontext(&scheduler, &processes[process].context);
  }
}

/* After a run nothing is counted, but what was pending or held where a process was killed, until somebody looks. */
static void check_slot_is_empty(struct vgpu_usage *file, int slot) {
  uint64_t most_bytes = are_kept && file == &usage ? MOST_KEPT_BYTES : 0;
  slot_is_live(file, slot);
  const struct vgpu_device_usage *device = &file->processes[slot].devices[0];
  CHECK(device->allocated_bytes <= most_bytes && device->counted_bytes <= most_bytes, "%s: left in slot %d", case_name,
        slot);
}

static void check_nothing_is_left(void) {
  for (int i = 0; i < count; i++) {
    check_slot_is_empty(&usage, i);
    for (int share = 0; share < SHARES; share++)
      check_slot_is_empty(&share_usage[share], i);
    CHECK(processes[i].dead || processes[i].own.usage.devices[0].allocated_bytes == 0, "%s: left in %d", case_name, i);
  }
}

/* refusals: may there be any? */
static void check(const int *const *scripts, int switches, int kills, bool refusals) {
  long runs_made = 0;
  for (count = 0; scripts[count] != NULL; count++)
    continue;
  explored_depth = 0;
  do {
    run(scripts, switches, kills);
    check_nothing_is_left();
    for (int i = 0; i < count; i++)
      CHECK(refusals || processes[i].refused == 0, "%s: %d was refused what fits", case_name, i);
    runs_made++;
  } while (explore_go_back());
  printf("%s: %ld orders\n", case_name, runs_made);
}

int main(int argument_count, char **arguments) {
  cases_begin(argument_count, arguments);
  static const int small[] = {30, 0}, large[] = {60, 0}, two[] = {50, 50, 0}, grows[] = {20, 20, 0};
  static const int twice[] = {60, 60, 0}, erases[] = {ERASE, ERASE, 0}, makes[] = {MAKE, 0};
  static const int greedy[] = {50, ASK_FOR_ALL, 0};
  static const int again[] = {12, RELEASE, 12, 30, RELEASE, 40, 0}, most[] = {55, RELEASE, 59, 0};
  CASE("two that do not fit together") check((const int *const[]){large, large, NULL}, 4, 0, true);
  CASE("two that ask twice") check((const int *const[]){two, two, NULL}, 3, 0, true);
  CASE("three that do not") check((const int *const[]){large, small, large, NULL}, 2, 0, true);
  CASE("two, and one is killed") check((const int *const[]){large, large, NULL}, 3, 1, true);
  /* Work that is about to be settled is seen twice for an instant. A thread that is held up just there for longer than
   * others look makes them refuse the last bytes: that takes more switches than these. */
  CASE("three that fit together") check((const int *const[]){small, small, grows, NULL}, 2, 0, false);
  CASE("two that fit together, of a size that is seen later")
  check((const int *const[]){makes, makes, NULL}, 2, 0, false);
  CASE("what never fits is in nobody's way") check((const int *const[]){greedy, small, NULL}, 4, 0, false);
  CASE("one alone that is told nothing but lies") check((const int *const[]){twice, erases, NULL}, 5, 0, true);
  CASE("two that fit, and one is killed") check((const int *const[]){large, small, NULL}, 1, 1, false);
  shares = (const int[]){0, 0, 1};
  CASE("two of a share that do not fit in it") check((const int *const[]){small, large, NULL}, 3, 0, true);
  CASE("two of a share that fit, and one is killed") check((const int *const[]){small, small, NULL}, 1, 1, false);
  CASE("a third one beside the share") check((const int *const[]){small, small, large, NULL}, 1, 1, true);
  shares = (const int[]){0, 1, 1};
  CASE("two shares that do not fit together") check((const int *const[]){large, large, NULL}, 3, 1, true);
  CASE("two shares that fit") check((const int *const[]){small, large, NULL}, 2, 1, false);
  are_kept = true;
  shares = (const int[]){0, 1, 1};
  CASE("two shares, and one is had again and again") check((const int *const[]){again, most, NULL}, 2, 1, true);
  CASE("what is kept fits beside the others") check((const int *const[]){again, small, NULL}, 2, 1, false);
  return cases_end();
}
