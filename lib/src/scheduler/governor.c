#include "scheduler/governor_parts.h"

#include "base/claim.h"
#include "base/clock.h"
#include "base/libc_symbols.h"
#include "base/log.h"
#include "compute/outstanding.h"

#include <dlfcn.h>
#include <errno.h>
#include <linux/futex.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>

#define GIVE_UP_AFTER_NS 2000000000LL /* of switches that are refused, or of work that no record knows of */
#define MOST_BROKEN 3                 /* times in a row in which work ran that had been taken off */
#define MOST_TRIES 8                  /* of a call that is refused while contexts come and go */
#define RECORDS_NS 1000000000LL       /* for which they are kept without work, and until it asks again: that takes ms */
#define EXIT_WAITS_NS 100000000LL     /* for what has not been charged yet; a call of the driver may take long */
#define STACK_BYTES (256 << 10)

static struct governor *governors[VGPU_MAX_DEVICES];
static _Atomic int governor_count;
static int32_t making; /* a claim */

/* ---- sleep ------------------------------------------------------------------------------------------------------- */

static void wake(_Atomic int32_t *word) {
  syscall(SYS_futex, word, FUTEX_WAKE_PRIVATE, 1, NULL, NULL, 0);
}

/* Sleeps until the word is something else, or a signal comes; false: so long (below zero: for ever). */
static bool sleep_while(_Atomic int32_t *word, int32_t is, int64_t most_ns) {
  const struct timespec most = {.tv_sec = most_ns / 1000000000, .tv_nsec = most_ns % 1000000000};
  const struct timespec *bound = most_ns < 0 ? NULL : &most;
  return syscall(SYS_futex, word, FUTEX_WAIT_PRIVATE, is, bound, NULL, 0) == 0 || errno != ETIMEDOUT;
}

void governor_note_work(struct meter *meter) {
  struct governor *governor = __atomic_load_n(&meter->governor, __ATOMIC_ACQUIRE);
  if (governor != NULL && atomic_load(&governor->sleeps) != 0 && atomic_exchange(&governor->sleeps, 0) != 0)
    wake(&governor->sleeps);
}

/* ---- calls of the driver ----------------------------------------------------------------------------------------- */

static bool is_known(const struct governor *governor, const struct channels *gpu) {
  return gpu->client.handle == governor->gpu.client.handle && gpu->subdevice == governor->gpu.subdevice;
}

static bool is_ours(const struct governor *governor, const struct channels *gpu) {
  char uuid[CHANNELS_UUID_BYTES];
  return is_known(governor, gpu) || (gpu->is_in_reach && channels_uuid(gpu, uuid) == RM_OK &&
                                     strncmp(uuid, governor->uuid, VGPU_UUID_SIZE - 1) == 0);
}

static void end_records(struct governor *governor) {
  if (governor->records.header != NULL)
    records_end(&governor->records);
}

/* Finds the channels as they are now, those in reach first; false while there are none. */
static bool find(struct governor *governor) {
  struct channels gpu, found = {0};
  for (uint32_t next = 0; !found.is_in_reach && channels_next(&next, &gpu);)
    if (is_ours(governor, &gpu))
      found = gpu;
  if (found.channel_count == 0)
    return false;
  if (!is_known(governor, &found) || governor->records.are_lost)
    end_records(governor);
  governor->gpu = found;
  return true;
}

static bool find_in_reach(struct governor *governor) {
  return find(governor) && governor->gpu.is_in_reach;
}

/* A descriptor has to be free to map them. There may be one later. */
static void begin_records(struct governor *governor) {
  static int said;
  int64_t now_ns = clock_now_ns();
  if (governor->records.header != NULL || now_ns < governor->records_at_ns ||
      records_begin(&governor->records, &governor->gpu))
    return;
  governor->records_at_ns = now_ns + RECORDS_NS;
  log_once(&said, LOG_WARNING,
           "the driver's records of work on GPU %s cannot be had, for which a descriptor has to be free; until then "
           "this process pays for others' work on it, too, while it has some itself",
           governor->uuid);
}

/* ---- the whole --------------------------------------------------------------------------------------------------- */

/* The host can take a process off its GPU, or move it, only where its work ends. */
static void leave_alone(struct governor *governor) {
  if (governor->may_be_off && find_in_reach(governor))
    governor_turn(governor, false);
  if (!governor->may_be_off)
    end_records(governor);
}

/* Without channels nothing is off. */
static void put_back(struct governor *governor) {
  for (int tries = 0; governor->may_be_off && tries < MOST_TRIES; tries++)
    governor->may_be_off =
        find(governor) && (!governor->gpu.has_file || channels_switch(&governor->gpu, false) != RM_OK);
}

/* From now on launches are held (compute/gate.c). */
static void give_up(struct governor *governor) {
  const char *why = !governor->gpu.is_in_reach
                        ? "it is out of reach of the driver's descriptor, or in too many contexts"
                        : "the driver does not take it off as it is asked to";
  log_line(LOG_WARNING, "work on GPU %s: %s; launches are held instead", governor->uuid, why);
  set(governor->meter->is_governed, false);
  set(governor->meter->holds_launches, true);
  governor->is_at_work = false;
  end_records(governor);
}

static bool is_obeyed(const struct governor *governor) {
  bool refused = governor->refused_ns != 0 && clock_now_ns() - governor->refused_ns > GIVE_UP_AFTER_NS;
  return !refused && governor->broken < MOST_BROKEN && governor->unseen_ns < GIVE_UP_AFTER_NS;
}

/* Without channels nothing is left of what was launched. */
static int64_t govern(struct governor *governor) {
  if (governor->is_suspended()) {
    leave_alone(governor);
    return GOVERNOR_LONGEST_TICK_NS;
  }
  governor->account.terms = governor->meter->terms(governor->meter->owner);
  if (!find(governor)) {
    outstanding_all_done(governor->meter, NULL, INT64_MAX);
    governor->is_off = governor->may_be_off = governor->is_at_work = false;
    governor->refused_ns = 0;
    return GOVERNOR_LONGEST_TICK_NS;
  }
  int64_t sleep_ns = GOVERNOR_LONGEST_TICK_NS;
  bool obeyed = governor->gpu.is_in_reach;
  if (obeyed) {
    begin_records(governor);
    governor_settle_and_compare(governor);
    governor_set_slices(governor, clock_now_ns());
    sleep_ns = governor_switch_as_due(governor);
    obeyed = is_obeyed(governor);
  }
  if (!obeyed)
    give_up(governor);
  return sleep_ns;
}

/* A filter of the program's may deny the call to all threads. */
static void put_back_or_say(struct governor *governor) {
  static int said;
  put_back(governor);
  if (governor->may_be_off)
    log_once(&said, LOG_WARNING,
             "work on GPU %s is off and cannot be put back, since the call of the driver is refused: it stays off "
             "until that goes well, or this process ends",
             governor->uuid);
}

/* Tries again and again to put back what was off when it gave up: nobody else would. */
static int64_t do_round(struct governor *governor) {
  int64_t sleep_ns = GOVERNOR_LONGEST_TICK_NS;
  if (get(governor->meter->is_governed))
    sleep_ns = govern(governor);
  if (!get(governor->meter->is_governed))
    put_back_or_say(governor);
  return sleep_ns;
}

static bool has_work(struct governor *governor) {
  return get(governor->meter->is_governed) && outstanding_any(governor->meter);
}

/* The host may suspend a program that does nothing, which wakes nobody: then it has no records any more. While there
 * is work that no round had seen before that, there is a round at each tick. */
static void wait_for_work(struct governor *governor) {
  int64_t keep_ns = RECORDS_NS;
  atomic_store(&governor->sleeps, 1);
  if (has_work(governor)) {
    atomic_store(&governor->sleeps, 0);
    sleep_while(&governor->is_asked, 0, GOVERNOR_LONGEST_TICK_NS);
  }
  while (atomic_load(&governor->sleeps) != 0 && atomic_load(&governor->is_asked) == 0)
    if (!sleep_while(&governor->sleeps, 1, keep_ns)) {
      end_records(governor);
      keep_ns = -1;
    }
  atomic_store(&governor->sleeps, 0);
}

/* Nobody but this thread uses what is its governor's. */
static void *run(void *governor_) {
  struct governor *governor = governor_;
  prctl(PR_SET_NAME, "vgpu-governor");
  for (;;) {
    bool is_asked = atomic_load(&governor->is_asked) != 0;
    int64_t sleep_ns = do_round(governor);
    if (is_asked) {
      atomic_store(&governor->is_asked, 0);
      wake(&governor->is_asked);
    }
    if (governor->is_at_work || governor->may_be_off)
      sleep_while(&governor->is_asked, 0, sleep_ns);
    else
      wait_for_work(governor);
  }
  return NULL;
}

typedef int create_function(pthread_t *thread, const pthread_attr_t *how, void *(*run)(void *), void *argument);
typedef int stack_function(pthread_attr_t *how, size_t bytes);

/* One for each GPU, so that the work on all of them goes off and on at the same times. The functions are in a library
 * of its own until glibc 2.34, which libcuda has loaded. No signal of the program's reaches the thread. */
static bool start_thread(struct governor *governor) {
  create_function *create = (create_function *)libc_dlsym(RTLD_DEFAULT, "pthread_create");
  stack_function *set_stack = (stack_function *)libc_dlsym(RTLD_DEFAULT, "pthread_attr_setstacksize");
  pthread_attr_t how;
  pthread_t thread;
  sigset_t all, before;
  if (create == NULL || set_stack == NULL || pthread_attr_init(&how) != 0)
    return false;
  set_stack(&how, STACK_BYTES);
  pthread_attr_setdetachstate(&how, PTHREAD_CREATE_DETACHED);
  sigfillset(&all);
  sigprocmask(SIG_BLOCK, &all, &before);
  bool started = create(&thread, &how, run, governor) == 0;
  sigprocmask(SIG_SETMASK, &before, NULL);
  pthread_attr_destroy(&how);
  return started;
}

/* ---- the beginning and the end ----------------------------------------------------------------------------------- */

static bool switches(struct governor *governor) {
  governor->may_be_off = true;
  bool switched = channels_switch(&governor->gpu, true) == RM_OK && channels_switch(&governor->gpu, false) == RM_OK;
  governor->may_be_off = !switched;
  return switched;
}

/* Tries all that is needed: a slice that can be read back, and a switch. */
static bool obeys(struct governor *governor) {
  uint64_t slice_us = 0;
  return find_in_reach(governor) && channels_set_slice(&governor->gpu, GOVERNOR_LEAST_SLICE_US) == RM_OK &&
         channels_slice_us(&governor->gpu, &slice_us) == RM_OK && slice_us == GOVERNOR_LEAST_SLICE_US &&
         channels_set_slice(&governor->gpu, GOVERNOR_DEFAULT_SLICE_US) == RM_OK && switches(governor);
}

/* A context that comes or goes meanwhile says nothing about the driver. */
static bool obeys_in_the_end(struct governor *governor) {
  uint32_t generation;
  int tries = 0;
  do {
    generation = channels_generation();
    if (obeys(governor))
      return true;
    put_back(governor);
  } while (channels_generation() != generation && ++tries < MOST_TRIES);
  return false;
}

/* Work that begins from now on wakes the thread. */
static void set_governed(struct governor *governor, bool is_governed) {
  __atomic_store_n(&governor->meter->governor, is_governed ? governor : NULL, __ATOMIC_RELEASE);
  set(governor->meter->is_governed, is_governed);
}

static bool join(struct governor *governor) {
  claim_take(&making);
  int count = atomic_load(&governor_count);
  set_governed(governor, true);
  bool added = count < VGPU_MAX_DEVICES && start_thread(governor);
  if (added) {
    governors[count] = governor;
    atomic_store(&governor_count, count + 1);
  } else {
    set_governed(governor, false);
  }
  claim_release(&making);
  return added;
}

/* Nobody has tried yet what a MIG instance's channels do, nor which UUID the driver gives it. */
static bool is_instance(const char *uuid) {
  return strncmp(uuid, "MIG-", 4) == 0;
}

bool governor_begin(struct meter *meter, const char *uuid, bool (*is_suspended)(void), samples_ask *ask) {
  struct governor *governor = is_instance(uuid) ? NULL : calloc(1, sizeof *governor);
  if (governor == NULL)
    return false;
  *governor = (struct governor){.meter = meter,
                                .uuid = uuid,
                                .is_suspended = is_suspended,
                                .account = {.meter = meter, .kept_ns = GOVERNOR_PERIOD_NS},
                                .samples = {.ask = ask, .device = meter->owner},
                                .slice_us = GOVERNOR_DEFAULT_SLICE_US,
                                .settled_ns = clock_now_ns(),
                                .period_ns = GOVERNOR_PERIOD_NS,
                                .calls_ns = GOVERNOR_EXPECTED_CALL_NS};
  if (obeys_in_the_end(governor)) {
    begin_records(governor);
    if (join(governor))
      return true;
  }
  end_records(governor);
  free(governor);
  return false;
}

static void await_answer(struct governor *governor, int64_t end_ns) {
  int64_t left_ns;
  while (atomic_load(&governor->is_asked) != 0 && (left_ns = end_ns - clock_now_ns()) > 0)
    sleep_while(&governor->is_asked, 1, left_ns);
}

/* A thread that sleeps until there is work has charged all that there was. */
void governor_settle_all(void) {
  int64_t end_ns = clock_now_ns() + EXIT_WAITS_NS;
  int count = atomic_load(&governor_count);
  for (int i = 0; i < count; i++) {
    atomic_store(&governors[i]->is_asked, 1);
    wake(&governors[i]->is_asked);
  }
  for (int i = 0; i < count; i++)
    if (atomic_load(&governors[i]->sleeps) == 0)
      await_answer(governors[i], end_ns);
}

void governor_forget(void) {
  atomic_store(&governor_count, 0);
  making = 0;
}
