#include "scheduler/governor.h"

#include "base/claim.h"
#include "base/clock.h"
#include "base/libc_symbols.h"
#include "base/log.h"
#include "compute/meter_parts.h"
#include "compute/outstanding.h"
#include "scheduler/account.h"
#include "scheduler/records.h"

#include <dlfcn.h>
#include <errno.h>
#include <linux/futex.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>

/* Work begins again at its multiples by the host's clock, in all processes at once. */
#define PERIOD_NS 40000000LL
#define LONGEST_PERIOD_NS (32 * PERIOD_NS)
#define MOST_OF_CALLS 0.02            /* of the time; a longer period has fewer */
#define EXPECTED_CALL_NS 450000LL     /* with nobody beside */
#define SHORTEST_TICK_NS 1000000LL    /* to look takes a tenth of a millisecond of the GPU's firmware */
#define LONGEST_TICK_NS 10000000LL    /* a pause, and another limit, hold after so long */
#define ASK_AFTER_NS 4000000LL        /* work that nobody has waited for since; then less and less often */
#define SLICE_AT_ALL_US 20000         /* of the GPU's own time-slicing, for 100 percent */
#define LEAST_SLICE_US 4000           /* a switch between contexts costs 0.15 ms */
#define SLICE_BESIDE_HIGHER_US 150    /* a request of high priority waits for as long */
#define DEFAULT_SLICE_US 2048         /* the driver's */
#define SET_SLICES_NS 500000000LL     /* again: what is set before the driver schedules a group is lost */
#define GIVE_UP_AFTER_NS 2000000000LL /* of switches that are refused, or of work that no record knows of */
#define MOST_BROKEN 3                 /* times in a row in which work ran that had been taken off */
#define MOST_TRIES 8                  /* of a call that is refused while contexts come and go, or of a question */
#define KEEP_RECORDS_S 1              /* without work: to begin them anew takes milliseconds, which nobody pays */
#define STACK_BYTES (256 << 10)

struct governor {
  struct meter *meter;
  const char *uuid;
  bool (*is_suspended)(void);
  int32_t claim; /* on all below */
  struct account account;
  struct channels gpu;
  struct records records;
  uint32_t switched, sliced; /* the objects' generation when that was done last */
  uint64_t slice_us;
  int64_t sliced_ns;
  bool is_off, is_at_work;
  bool may_be_off; /* in part: to take it off was refused */
  int broken;
  int64_t off_ns, noted_off_ns;       /* since when it is off; and until when that has been booked */
  int64_t settled_ns, outstanding_ns; /* when that was done last, and for how long there had been work then */
  int64_t ahead_ns;                   /* what the records had after that */
  double pace;                        /* for which part of the time in which it had work it had the GPU */
  int64_t ask_at_ns, ask_after_ns;    /* whether anything is left of it */
  int64_t period_ns, calls_ns;
  int64_t refused_ns; /* since when switches are; 0: they are not */
  int64_t unseen_ns;  /* for which it has had work since the records last knew of any */
  bool says_idle;     /* the driver has done so */
  int says_busy;      /* how often it has where nothing was left */
};

static struct governor *governors[VGPU_MAX_DEVICES];
static _Atomic int governor_count;
static int32_t making; /* a claim */
static bool has_thread;

/* ---- sleep ------------------------------------------------------------------------------------------------------- */

static _Atomic int32_t sleeps; /* the thread, until there is work */

void governor_note_work(void) {
  if (atomic_load(&sleeps) != 0 && atomic_exchange(&sleeps, 0) != 0)
    syscall(SYS_futex, &sleeps, FUTEX_WAKE_PRIVATE, 1, NULL, NULL, 0);
}

static bool has_work(void) {
  bool any = false;
  for (int i = 0; i < atomic_load(&governor_count); i++)
    any |= get(governors[i]->meter->is_governed) && outstanding_any(governors[i]->meter);
  return any;
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

static bool has_records(struct governor *governor) {
  return governor->records.header != NULL || records_begin(&governor->records, &governor->gpu);
}

static bool is_answered(struct governor *governor, uint32_t status, int64_t now_ns) {
  governor->refused_ns = status == RM_OK ? 0 : governor->refused_ns != 0 ? governor->refused_ns : now_ns;
  return status == RM_OK;
}

/* Notes how long a call took, and fits the period to it: each call takes longer where many processes ask the driver at
 * once, and then all of them switch less often. A host that holds up a single call changes nothing. */
static void note_duration(struct governor *governor, int64_t took_ns) {
  governor->calls_ns = min(took_ns, governor->calls_ns + governor->calls_ns / 4);
  double part = (double)governor->calls_ns / (double)governor->period_ns;
  if (part > MOST_OF_CALLS)
    governor->period_ns = min(2 * governor->period_ns, LONGEST_PERIOD_NS);
  else if (part < MOST_OF_CALLS / 3)
    governor->period_ns = max(governor->period_ns / 2, PERIOD_NS);
  governor->account.kept_ns = governor->period_ns;
}

/* ---- what was had ------------------------------------------------------------------------------------------------ */

static uint32_t take_launches(struct meter *meter) {
  uint32_t launches = 0, count = atomic_load(&meter->stream_count);
  for (uint32_t i = 0; i < count; i++)
    if (get(meter->streams[i]->governed_launches) > 0)
      launches += swap(meter->streams[i]->governed_launches, 0);
  return launches;
}

/* Nobody has waited for some work since the last look: is anything left of it? The driver says "no" only where there
 * was nothing for a quarter of a millisecond. */
static void ask(struct governor *governor, int64_t now_ns, bool had_work_all_the_time) {
  if (!had_work_all_the_time || governor->is_off) {
    governor->ask_after_ns = ASK_AFTER_NS;
    governor->ask_at_ns = now_ns + ASK_AFTER_NS;
    return;
  }
  if (now_ns < governor->ask_at_ns)
    return;
  uint32_t status = channels_ask_busy(&governor->gpu);
  governor->says_idle |= status == RM_OK;
  if (status == RM_OK)
    outstanding_all_done(governor->meter, NULL, now_ns);
  governor->ask_after_ns = status == RM_OK ? ASK_AFTER_NS : min(2 * governor->ask_after_ns, governor->period_ns);
  governor->ask_at_ns = now_ns + governor->ask_after_ns;
}

/* The question is worth nothing where a driver never says "no". */
static void try_question(struct governor *governor) {
  if (governor->says_idle || governor->is_at_work)
    return;
  uint32_t status = channels_ask_busy(&governor->gpu);
  governor->says_idle = status == RM_OK;
  governor->says_busy += status == RM_BUSY && !outstanding_any(governor->meter);
}

/* Charges the time in which we were on the GPU, as that has recorded it, but no more than that in which we had work: a
 * context that nobody drives away stays there with nothing to do. */
static void settle(struct governor *governor) {
  struct meter *meter = governor->meter;
  int64_t now_ns = clock_now_ns(), passed_ns = now_ns - governor->settled_ns;
  int64_t outstanding_ns = max(outstanding_total_ns(meter, now_ns), governor->outstanding_ns);
  int64_t had_work_ns = min(outstanding_ns - governor->outstanding_ns, passed_ns);
  struct account_entry entry = {.now_ns = now_ns, .launches = take_launches(meter)};
  if (had_work_ns > 0 && !governor->is_off) {
    int64_t on_ns = governor->ahead_ns + records_read_ns(&governor->records, &governor->gpu);
    entry.used_ns = min(on_ns, had_work_ns);
    governor->ahead_ns = min(on_ns - entry.used_ns, clock_now_ns() - now_ns);
    governor->unseen_ns = on_ns > 0 ? 0 : governor->unseen_ns + had_work_ns;
  }
  if (had_work_ns >= SHORTEST_TICK_NS && !governor->is_off)
    governor->pace = (double)entry.used_ns / (double)had_work_ns;
  if (governor->is_off && outstanding_any(meter))
    entry.held_ns = now_ns - governor->noted_off_ns;
  governor->noted_off_ns = now_ns;
  governor->is_at_work = governor->is_off || had_work_ns > 0 || outstanding_any(meter);
  governor->outstanding_ns = outstanding_ns;
  governor->settled_ns = now_ns;
  entry.at_work_since_ns = outstanding_any(meter) && !governor->is_off ? now_ns : 0;
  ask(governor, now_ns, had_work_ns == passed_ns);
  account_enter(&governor->account, &entry);
}

/* ---- slices ------------------------------------------------------------------------------------------------------ */

static uint64_t wanted_slice_us(const struct governor *governor, struct turns_view others) {
  uint32_t percent = governor->account.terms.percents[0];
  if (others.higher_priority)
    return SLICE_BESIDE_HIGHER_US;
  if (percent >= VGPU_NO_SM_LIMIT && !others.another_tenant)
    return DEFAULT_SLICE_US;
  return (uint64_t)max(percent * SLICE_AT_ALL_US / 100, LEAST_SLICE_US) / (uint64_t)(others.siblings + 1);
}

/* Takes no answer for one about switches: a driver may set slices, and refuse to switch. */
static void set_slices(struct governor *governor, int64_t now_ns) {
  struct turns *turns = &governor->meter->turns;
  struct turns_view others = {0};
  if (governor->meter->takes_turns) {
    turns_note_presence(turns);
    others = turns_refresh(turns);
  }
  uint64_t slice_us = wanted_slice_us(governor, others);
  bool is_recent = now_ns - governor->sliced_ns < SET_SLICES_NS && governor->sliced == channels_generation();
  if (slice_us == governor->slice_us && (is_recent || slice_us == DEFAULT_SLICE_US))
    return;
  governor->sliced = channels_generation();
  governor->sliced_ns = now_ns;
  governor->slice_us = slice_us;
  (void)channels_set_slice(&governor->gpu, slice_us);
}

/* ---- the switch -------------------------------------------------------------------------------------------------- */

static void note_off(struct governor *governor, int64_t began_ns, int64_t now_ns) {
  note_duration(governor, now_ns - began_ns);
  settle(governor);
  records_note_off(&governor->records, &governor->gpu);
  if (!governor->is_off)
    governor->off_ns = governor->noted_off_ns = now_ns;
}

/* A new context's channels are not off, and what they do breaks nothing. */
static void note_on(struct governor *governor, uint32_t generation, int64_t now_ns) {
  const struct meter_observer *observer = governor->meter->observer;
  bool ran = governor->records.ran_while_off && governor->switched == generation;
  governor->broken = ran ? governor->broken + 1 : 0;
  records_note_on(&governor->records);
  if (observer == NULL)
    return;
  observer->waited(governor->meter, governor->off_ns, now_ns);
  observer->was_off(governor->meter, governor->off_ns, now_ns);
}

/* A list with a channel that has been freed meanwhile is refused, though not always all of it: the next one is without
 * it. Of a context that was being made the list has not all channels, and the driver puts it back. */
static void turn(struct governor *governor, bool off) {
  if (!off)
    records_read_ns(&governor->records, &governor->gpu);
  int64_t began_ns = clock_now_ns();
  uint32_t generation = channels_generation(), status = channels_switch(&governor->gpu, off);
  int64_t now_ns = clock_now_ns();
  governor->may_be_off |= off;
  if (!is_answered(governor, status, now_ns))
    return;
  if (off)
    note_off(governor, began_ns, now_ns);
  else if (governor->is_off)
    note_on(governor, generation, now_ns);
  governor->switched = generation;
  governor->is_off = governor->may_be_off = off;
}

static int64_t last_period_ns(const struct governor *governor, int64_t now_ns) {
  struct timespec now;
  clock_gettime(CLOCK_REALTIME, &now);
  return now_ns - (now.tv_sec * 1000000000LL + now.tv_nsec) % governor->period_ns;
}

static bool is_to_go_on(const struct governor *governor, bool must, int64_t open_ns, int64_t now_ns) {
  bool begins = last_period_ns(governor, now_ns) >= max(open_ns, governor->off_ns);
  return !must && governor->may_be_off && (begins || !governor->is_off);
}

/* Returns for how long nothing is to be done. */
static int64_t switch_as_due(struct governor *governor) {
  int64_t now_ns = clock_now_ns(), open_ns = account_open_at_ns(&governor->account, now_ns);
  bool must = open_ns > now_ns || (governor->account.terms.paused && governor->is_at_work);
  if (must && (!governor->is_off || governor->switched != channels_generation()))
    turn(governor, true);
  else if (is_to_go_on(governor, must, open_ns, now_ns))
    turn(governor, false);
  now_ns = clock_now_ns();
  if (governor->is_off)
    return min(last_period_ns(governor, now_ns) + governor->period_ns - now_ns, LONGEST_TICK_NS);
  uint32_t percent = governor->account.terms.percents[governor->account.slowest];
  double tokens_ns = (double)(now_ns - open_ns) * percent / 100, most_ns = (double)LONGEST_TICK_NS * governor->pace;
  return tokens_ns < most_ns ? max((int64_t)(tokens_ns / governor->pace), SHORTEST_TICK_NS) : LONGEST_TICK_NS;
}

/* ---- the whole --------------------------------------------------------------------------------------------------- */

/* The host can take a process off its GPU, or move it, only where its work ends. */
static void leave_alone(struct governor *governor) {
  if (governor->may_be_off && find_in_reach(governor) && has_records(governor))
    turn(governor, false);
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
                    : governor->says_busy < MOST_TRIES ? "the driver does not take it off as it is asked to"
                                                       : "the driver always says that there is some";
  log_line(LOG_WARNING, "work on GPU %s: %s; launches are held instead", governor->uuid, why);
  set(governor->meter->is_governed, false);
  governor->is_at_work = false;
  end_records(governor);
}

static bool is_obeyed(const struct governor *governor) {
  bool refused = governor->refused_ns != 0 && clock_now_ns() - governor->refused_ns > GIVE_UP_AFTER_NS;
  return !refused && governor->broken < MOST_BROKEN && governor->unseen_ns < GIVE_UP_AFTER_NS &&
         governor->says_busy < MOST_TRIES;
}

/* Without channels nothing is left of what was launched. */
static int64_t govern(struct governor *governor) {
  if (governor->is_suspended()) {
    leave_alone(governor);
    return LONGEST_TICK_NS;
  }
  governor->account.terms = meter_terms(governor->meter);
  if (!find(governor)) {
    outstanding_all_done(governor->meter, NULL, INT64_MAX);
    governor->is_off = governor->may_be_off = governor->is_at_work = false;
    governor->refused_ns = 0;
    return LONGEST_TICK_NS;
  }
  int64_t sleep_ns = LONGEST_TICK_NS;
  bool obeyed = governor->gpu.is_in_reach && has_records(governor);
  if (obeyed) {
    settle(governor);
    try_question(governor);
    set_slices(governor, clock_now_ns());
    sleep_ns = switch_as_due(governor);
    obeyed = is_obeyed(governor);
  }
  if (!obeyed)
    give_up(governor);
  return sleep_ns;
}

/* Tries again and again to put back what was off when it gave up: nobody else would. */
static int64_t do_round(struct governor *governor) {
  int64_t sleep_ns = LONGEST_TICK_NS;
  if (get(governor->meter->is_governed))
    sleep_ns = govern(governor);
  if (!get(governor->meter->is_governed))
    put_back(governor);
  return sleep_ns;
}

static void end_all_records(void) {
  for (int i = 0; i < atomic_load(&governor_count); i++) {
    claim_take(&governors[i]->claim);
    if (!governors[i]->may_be_off)
      end_records(governors[i]);
    claim_release(&governors[i]->claim);
  }
}

/* The host may suspend a program that does nothing, which wakes nobody: then it has no records any more. While there
 * is work that no round had seen before that, there is a round at each tick. */
static void wait_for_work(void) {
  static const struct timespec keep = {.tv_sec = KEEP_RECORDS_S};
  bool has_records = true;
  atomic_store(&sleeps, 1);
  bool any = has_work();
  if (any)
    clock_sleep_ns(LONGEST_TICK_NS);
  while (!any && atomic_load(&sleeps) != 0) {
    long waited = syscall(SYS_futex, &sleeps, FUTEX_WAIT_PRIVATE, 1, has_records ? &keep : NULL, NULL, 0);
    if (waited != 0 && errno == ETIMEDOUT) {
      end_all_records();
      has_records = false;
    }
  }
  atomic_store(&sleeps, 0);
}

static void *run(void *unused) {
  prctl(PR_SET_NAME, "vgpu-governor");
  for (;;) {
    int64_t sleep_ns = LONGEST_TICK_NS;
    bool is_at_work = false;
    for (int i = 0; i < atomic_load(&governor_count); i++) {
      struct governor *governor = governors[i];
      claim_take(&governor->claim);
      sleep_ns = min(sleep_ns, do_round(governor));
      is_at_work |= governor->is_at_work || governor->may_be_off;
      claim_release(&governor->claim);
    }
    if (is_at_work)
      clock_sleep_ns(sleep_ns);
    else
      wait_for_work();
  }
  return unused;
}

typedef int create_function(pthread_t *thread, const pthread_attr_t *how, void *(*run)(void *), void *argument);
typedef int stack_function(pthread_attr_t *how, size_t bytes);

/* In a library of its own until glibc 2.34, which libcuda has loaded. No signal of the program's reaches the thread. */
static bool start_thread(void) {
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
  bool started = create(&thread, &how, run, NULL) == 0;
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

/* Tries all that is needed: a slice that can be read back, records, and a switch. */
static bool obeys(struct governor *governor) {
  uint64_t slice_us = 0;
  return find_in_reach(governor) && channels_set_slice(&governor->gpu, LEAST_SLICE_US) == RM_OK &&
         channels_slice_us(&governor->gpu, &slice_us) == RM_OK && slice_us == LEAST_SLICE_US &&
         channels_set_slice(&governor->gpu, DEFAULT_SLICE_US) == RM_OK && has_records(governor) && switches(governor);
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

static bool join(struct governor *governor) {
  claim_take(&making);
  int count = atomic_load(&governor_count);
  bool added = count < VGPU_MAX_DEVICES && (has_thread || (has_thread = start_thread()));
  if (added) {
    governors[count] = governor;
    atomic_store(&governor_count, count + 1);
    set(governor->meter->is_governed, true);
  }
  claim_release(&making);
  return added;
}

/* Nobody has tried yet what a MIG instance's channels do, nor which UUID the driver gives it. */
static bool is_instance(const char *uuid) {
  return strncmp(uuid, "MIG-", 4) == 0;
}

bool governor_begin(struct meter *meter, const char *uuid, bool (*is_suspended)(void)) {
  struct governor *governor = is_instance(uuid) ? NULL : calloc(1, sizeof *governor);
  if (governor == NULL)
    return false;
  *governor = (struct governor){.meter = meter,
                                .uuid = uuid,
                                .is_suspended = is_suspended,
                                .account = {.meter = meter, .kept_ns = PERIOD_NS},
                                .slice_us = DEFAULT_SLICE_US,
                                .settled_ns = clock_now_ns(),
                                .pace = 1,
                                .period_ns = PERIOD_NS,
                                .calls_ns = EXPECTED_CALL_NS};
  if (obeys_in_the_end(governor) && join(governor))
    return true;
  end_records(governor);
  free(governor);
  return false;
}

void governor_settle_all(void) {
  for (int i = 0; i < atomic_load(&governor_count); i++) {
    struct governor *governor = governors[i];
    claim_take(&governor->claim);
    if (get(governor->meter->is_governed) && !governor->is_suspended() && find_in_reach(governor) &&
        has_records(governor)) {
      governor->account.terms = meter_terms(governor->meter);
      settle(governor);
    }
    claim_release(&governor->claim);
  }
}

void governor_forget(void) {
  atomic_store(&governor_count, 0);
  atomic_store(&sleeps, 0);
  making = 0;
  has_thread = false;
}
