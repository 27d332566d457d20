/*
 * Threads of one process that allocate, free and have contexts or arrays made, while others ask the driver what the
 * process holds: run step by step in every order there is, with at most so many switches between them that nobody asked
 * for. A step is what a claim guards, or a call of the driver. The code is that of memory/ledger.c and ledger_totals.c
 * itself. At no time is less counted than the driver holds.
 */
#include "abi.h"
#include "base/claim.h"
#include "base/clock.h"
#include "cases.h"
#include "check.h"
#include "explore.h"

#include <string.h>
#include <ucontext.h>

static void step(void);
static bool inside; /* inside a claim's guarded part */

#define claim_take(claim) (step(), inside = true)
#define claim_release(claim) (inside = false)
#define clock_sleep_ns(duration_ns) step()

#include "memory/ledger.c"
#include "memory/ledger_totals.c"

#define THREADS 3
#define LIMIT_BYTES 1000000
#define STACK_BYTES 65536

/* At the beginning. */
#define ALLOCATED_BYTES 3000
#define OVERHEAD_BYTES 500

#define MADE_BYTES 70
#define RESERVED_FOR_IT_BYTES 40

enum action { END, ALLOCATE, FREE, FREE_UNKNOWN, LOOK, LOAD, MAKE };

struct thread {
  ucontext_t context;
  const enum action *script;
  bool ended;
};

static struct vgpu_usage usage;
static struct ledger_own own;
static struct ledger ledger;

static bool reserves(uint64_t bytes) {
  return ledger_reserve(&ledger, 0, bytes, (uint64_t[]){LIMIT_BYTES}).used_bytes != LEDGER_FULL;
}
static uint64_t driver_bytes, unmeasured_bytes, overhead_bytes;
static struct thread threads[THREADS];
static char stacks[THREADS][STACK_BYTES];
static ucontext_t scheduler;
static bool scheduled;
static int current, count;

static int reach_file(void *context) {
  (void)context;
  return 0;
}

static bool read_file(void *context, int way, void *to, size_t size, size_t at) {
  (void)way;
  (void)context;
  memcpy(to, (char *)&usage + at, size);
  return true;
}

static bool write_file(void *context, int way, const void *from, size_t size, size_t at) {
  (void)way;
  (void)context;
  memcpy((char *)&usage + at, from, size);
  return true;
}

static const struct ledger_slots slots = {reach_file, read_file, write_file, NULL};

static void step(void) {
  if (scheduled && !inside)
    swapcontext(&threads[current].context, &scheduler);
}

/* ---- what threads do ----------------------------------------------------------------------------------------------
 */

static void driver_takes(uint64_t bytes) {
  step();
  driver_bytes += bytes;
}

static uint64_t driver_answers(void) {
  step();
  return driver_bytes;
}

static void allocate(uint64_t bytes) {
  CHECK(reserves(bytes), "%s: refused", case_name);
  driver_takes(bytes);
  ledger_settle(&ledger, 0, bytes, bytes);
}

static void give_back(uint64_t bytes, uint64_t at_most_bytes) {
  ledger_begin_leaving(&ledger, 0, at_most_bytes);
  driver_takes(-bytes);
  ledger_release(&ledger, 0, bytes);
  ledger_end_leaving(&ledger, 0, at_most_bytes);
}

static void look(void) {
  struct ledger_snapshot before = ledger_snapshot(&ledger, 0);
  uint64_t bytes = driver_answers();
  ledger_correct(&ledger, 0, &before, bytes, LEDGER_LOOKED, 0);
}

static void driver_makes(uint64_t bytes, uint64_t unmeasured) {
  step();
  driver_bytes += bytes;
  overhead_bytes += bytes;
  unmeasured_bytes += unmeasured;
}

/* A module, when a kernel of it is launched: nobody knows before somebody asks. */
static void load(void) {
  driver_makes(MADE_BYTES, MADE_BYTES);
  look();
  unmeasured_bytes -= MADE_BYTES;
}

/* Until the answer is counted nobody can know of what it is more than was reserved for it. */
static void make(void) {
  CHECK(reserves(RESERVED_FOR_IT_BYTES), "%s: refused", case_name);
  driver_makes(MADE_BYTES, MADE_BYTES - RESERVED_FOR_IT_BYTES);
  struct ledger_snapshot before = ledger_snapshot(&ledger, 0);
  uint64_t bytes = driver_answers();
  ledger_correct(&ledger, 0, &before, bytes, LEDGER_MADE, RESERVED_FOR_IT_BYTES);
  unmeasured_bytes -= MADE_BYTES - RESERVED_FOR_IT_BYTES;
}

static void live(void) {
  struct thread *thread = &threads[current];
  for (const enum action *action = thread->script; *action != END; action++)
    switch (*action) {
    case ALLOCATE:
      allocate(800);
      break;
    case FREE:
      give_back(800, 800);
      break;
    case FREE_UNKNOWN:
      give_back(800, LEDGER_UNKNOWN_BYTES);
      break;
    case LOOK:
      look();
      break;
    case LOAD:
      load();
      break;
    default:
      make();
    }
  thread->ended = true;
}

/* ---- one run ------------------------------------------------------------------------------------------------------
 */

static uint64_t counted(void) {
  bool before = scheduled;
  scheduled = false;
  uint64_t bytes = ledger_used(&ledger, 0);
  scheduled = before;
  return bytes;
}

static void start(const enum action *const *scripts) {
  scheduled = false;
  usage = (struct vgpu_usage){.slots_used = 1};
  inside = false;
  own = (struct ledger_own){0};
  ledger = (struct ledger){.own = &own, .slots = &slots};
  unmeasured_bytes = 0;
  overhead_bytes = OVERHEAD_BYTES;
  driver_bytes = OVERHEAD_BYTES + ALLOCATED_BYTES;
  ledger_add(&ledger, 0, ALLOCATED_BYTES);
  look();
  for (int i = 0; i < count; i++) {
    threads[i] = (struct thread){.script = scripts[i]};
    getcontext(&threads[i].context);
    threads[i].context.uc_stack.ss_sp = stacks[i];
    threads[i].context.uc_stack.ss_size = STACK_BYTES;
    threads[i].context.uc_link = &scheduler;
    makecontext(&threads[i].context, live, 0);
  }
  scheduled = true;
}

static unsigned possible_choices(int switches) {
  unsigned choices = 0;
  for (int i = 0; i < count; i++)
    if (!threads[i].ended && (i == current || switches > 0 || threads[current].ended))
      choices |= 1u << i;
  return choices;
}

/* Memory that has just been made counts in full, and so for a moment perhaps with what another thread allocates. */
static bool makes_any(const enum action *const *scripts) {
  for (int i = 0; i < count; i++)
    if (scripts[i][0] == MAKE)
      return true;
  return false;
}

static void run(const enum action *const *scripts, int switches) {
  bool exact = !makes_any(scripts);
  start(scripts);
  current = 0;
  unsigned choices;
  for (int at = 0; (choices = possible_choices(switches)) != 0; at++) {
    int chosen = explore_choose(at, choices);
    switches -= chosen != current && !threads[current].ended;
    current = chosen;
    swapcontext(&scheduler, &threads[chosen].context);
    CHECK(counted() + unmeasured_bytes >= driver_bytes, "%s: %llu of %llu bytes are counted", case_name,
          (unsigned long long)counted(), (unsigned long long)driver_bytes);
    CHECK(!exact || own.usage.devices[0].overhead_bytes <= overhead_bytes, "%s: what is none counts as overhead",
          case_name);
  }
  scheduled = false;
}

/* Anything that was not clear has become clear with the next answer. */
static void check_all_is_counted_once(void) {
  look();
  CHECK(counted() == driver_bytes, "%s: %llu bytes are counted at last, %llu held", case_name,
        (unsigned long long)counted(), (unsigned long long)driver_bytes);
}

static void check(const enum action *const *scripts, int switches) {
  long runs_made = 0;
  for (count = 0; scripts[count] != NULL; count++)
    continue;
  explored_depth = 0;
  do {
    run(scripts, switches);
    check_all_is_counted_once();
    runs_made++;
  } while (explore_go_back());
  printf("%s: %ld orders\n", case_name, runs_made);
}

int main(int argument_count, char **arguments) {
  cases_begin(argument_count, arguments);
  static const enum action looks[] = {LOOK, END}, allocates[] = {ALLOCATE, END}, frees[] = {FREE, END};
  static const enum action ends[] = {FREE_UNKNOWN, END}, loads[] = {LOAD, END};
  static const enum action both[] = {ALLOCATE, FREE, END}, makes[] = {MAKE, END}, looks_twice[] = {LOOK, LOOK, END};
  CASE("an allocation while NVML is asked") check((const enum action *const[]){looks, allocates, NULL}, 3);
  CASE("a free while NVML is asked") check((const enum action *const[]){looks, frees, NULL}, 3);
  CASE("something ends, nobody knows how large, while NVML is asked")
  check((const enum action *const[]){looks, ends, NULL}, 4);
  CASE("something is loaded while NVML is asked") check((const enum action *const[]){looks, loads, NULL}, 3);
  CASE("an allocation and a free, one after the other") check((const enum action *const[]){looks, both, NULL}, 3);
  CASE("an allocation and a free, in two threads")
  check((const enum action *const[]){looks, allocates, frees, NULL}, 2);
  CASE("two that ask") check((const enum action *const[]){looks_twice, both, looks, NULL}, 2);
  CASE("something is made") check((const enum action *const[]){looks_twice, makes, NULL}, 2);
  CASE("something is made while another allocates") check((const enum action *const[]){makes, both, NULL}, 2);
  CASE("two things are made") check((const enum action *const[]){makes, makes, NULL}, 2);
  CASE("two things are made while another asks") check((const enum action *const[]){makes, makes, looks, NULL}, 2);
  return cases_end();
}
