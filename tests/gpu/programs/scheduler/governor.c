/*
 * A trial: holds the program that it is preloaded into to CUDA_DEVICE_SM_LIMIT percent of the GPU's time by the GPU's
 * own scheduler alone. No call of CUDA is caught. A thread adds up for how long the GPU has worked for the program, by
 * the driver's records, and takes its channels off the GPU, in the middle of a kernel, until its tokens are back.
 *
 * It takes a program that is on the GPU to be at work there, so it is for programs that keep the GPU busy.
 * GOVERNOR_TRACE prints each second what it saw.
 */
#include "records.h"

#include <errno.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#define PERIOD_NS 40000000LL /* work begins again at its multiples, by the clock of the host: all do so together */
#define LONGEST_PERIOD_NS (32 * PERIOD_NS)
#define LEAST_BURST_NS 20000000LL
#define SHORTEST_SLEEP_NS 500000LL
#define RETRY_NS 2000000LL
#define SLICE_AT_ALL_US 20000     /* of the GPU's own time-slicing, for 100 percent */
#define LEAST_SLICE_US 4000       /* a switch between contexts costs 0.15 ms */
#define SET_SLICES_NS 500000000LL /* again: what is set before the driver schedules a group is lost */
#define COMPLETE_CHANNELS 8       /* of a context: then it is made */
#define MOST_OF_CALLS 0.02        /* of the time; a longer period has fewer */
#define SECOND_NS 1000000000LL

struct governor {
  double share; /* of the time: 0 to 1 */
  struct objects_gpu gpu;
  struct records records;
  int64_t tokens_ns, refreshed_ns, sliced_ns, period_ns, calls_ns, off_since_ns;
  uint32_t generation; /* of the objects, when slices were set */
  uint32_t failed;     /* the last status that was not RM_OK */
  bool is_off;
  int64_t traced_ns, used_ns, off_ns, offs; /* in this second */
};

static int64_t clock_ns(clockid_t clock) {
  struct timespec now;
  clock_gettime(clock, &now);
  return now.tv_sec * SECOND_NS + now.tv_nsec;
}

static void sleep_ns(int64_t duration_ns) {
  struct timespec duration = {duration_ns / SECOND_NS, duration_ns % SECOND_NS};
  nanosleep(&duration, NULL);
}

static int64_t least(int64_t a, int64_t b) {
  return a < b ? a : b;
}
static int64_t most(int64_t a, int64_t b) {
  return a > b ? a : b;
}

static void note(struct governor *governor, uint32_t status) {
  if (status != RM_OK)
    governor->failed = status;
}

static void settle(struct governor *governor) {
  int64_t used_ns = records_read_ns(&governor->records, &governor->gpu), now_ns = clock_ns(CLOCK_MONOTONIC);
  int64_t burst_ns = most(LEAST_BURST_NS, (int64_t)(2 * governor->share * (double)governor->period_ns));
  int64_t accrued_ns = (int64_t)(governor->share * (double)(now_ns - governor->refreshed_ns));
  governor->tokens_ns = least(governor->tokens_ns + accrued_ns, burst_ns) - used_ns;
  governor->refreshed_ns = now_ns;
  governor->used_ns += used_ns;
}

static void set_slices(struct governor *governor) {
  int64_t now_ns = clock_ns(CLOCK_MONOTONIC);
  if (governor->generation == objects_generation() && now_ns - governor->sliced_ns < SET_SLICES_NS)
    return;
  governor->generation = objects_generation();
  governor->sliced_ns = now_ns;
  note(governor, channels_set_slice(&governor->gpu,
                                    (uint64_t)most((int64_t)(governor->share * SLICE_AT_ALL_US), LEAST_SLICE_US)));
}

/* Where many tenants ask the driver at once, each call takes longer, and all of them switch less often. */
static void note_call(struct governor *governor, int64_t took_ns) {
  governor->calls_ns = (4 * governor->calls_ns + took_ns) / 5;
  double part = (double)governor->calls_ns / (double)governor->period_ns;
  if (part > MOST_OF_CALLS)
    governor->period_ns = least(2 * governor->period_ns, LONGEST_PERIOD_NS);
  else if (part < MOST_OF_CALLS / 4)
    governor->period_ns = most(governor->period_ns / 2, PERIOD_NS);
}

static void turn(struct governor *governor, bool off) {
  int64_t began_ns = clock_ns(CLOCK_MONOTONIC);
  note(governor, channels_switch(&governor->gpu, off));
  int64_t now_ns = clock_ns(CLOCK_MONOTONIC);
  governor->is_off = off;
  if (off) {
    note_call(governor, now_ns - began_ns);
    settle(governor);
    records_note_off(&governor->records, &governor->gpu);
    governor->off_since_ns = now_ns;
    governor->offs++;
  } else {
    governor->off_ns += now_ns - governor->off_since_ns;
  }
}

static int64_t until_next_period_ns(const struct governor *governor) {
  return governor->period_ns - clock_ns(CLOCK_REALTIME) % governor->period_ns;
}

/* Returns for how long nothing is to be done. */
static int64_t govern(struct governor *governor) {
  settle(governor);
  set_slices(governor);
  if (governor->is_off && governor->tokens_ns > 0)
    turn(governor, false);
  else if (!governor->is_off && governor->tokens_ns <= 0)
    turn(governor, true);
  if (!governor->is_off)
    return least(most(governor->tokens_ns, SHORTEST_SLEEP_NS), governor->period_ns);
  int64_t needs_ns = (int64_t)((double)-governor->tokens_ns / governor->share), sleep = until_next_period_ns(governor);
  while (sleep < needs_ns)
    sleep += governor->period_ns;
  return sleep;
}

static void trace(struct governor *governor) {
  int64_t now_ns = clock_ns(CLOCK_MONOTONIC), passed_ns = now_ns - governor->traced_ns;
  if (getenv("GOVERNOR_TRACE") == NULL || passed_ns < SECOND_NS)
    return;
  fprintf(stderr, "governor: %.2f %% used, %.1f off in %lld turns, period %lld ms, status %x\n",
          100.0 * (double)governor->used_ns / (double)passed_ns, 100.0 * (double)governor->off_ns / (double)passed_ns,
          (long long)governor->offs, (long long)governor->period_ns / 1000000, governor->failed);
  governor->traced_ns = now_ns;
  governor->used_ns = governor->off_ns = governor->offs = 0;
}

static bool begin(struct governor *governor) {
  uint32_t place = 0;
  bool complete = objects_next(&place, &governor->gpu) && governor->gpu.channel_count >= COMPLETE_CHANNELS;
  if (!complete || governor->records.header != NULL)
    return complete;
  if (!records_begin(&governor->records, &governor->gpu)) {
    fprintf(stderr, "governor: the driver gives no records\n");
    return false;
  }
  governor->refreshed_ns = governor->traced_ns = clock_ns(CLOCK_MONOTONIC);
  return true;
}

static void *run(void *share) {
  static struct governor governor = {.period_ns = PERIOD_NS, .tokens_ns = LEAST_BURST_NS};
  governor.share = *(double *)share;
  for (;;) {
    sleep_ns(begin(&governor) ? govern(&governor) : RETRY_NS);
    trace(&governor);
  }
  return NULL;
}

static void start(void) {
  static double share;
  static pthread_t thread;
  const char *percent = getenv("CUDA_DEVICE_SM_LIMIT");
  share = percent != NULL ? atof(percent) / 100 : 1;
  if (share > 0 && share < 1)
    pthread_create(&thread, NULL, run, &share);
}

int ioctl(int file, unsigned long request, ...) {
  static pthread_once_t started = PTHREAD_ONCE_INIT;
  va_list more;
  va_start(more, request);
  void *argument = va_arg(more, void *);
  va_end(more);
  int result = rm_ioctl(file, request, argument);
  int error = errno;
  if (result == 0)
    objects_note(file, request, argument);
  if (result == 0 && RM_REQUEST_TYPE(request) == RM_TYPE && RM_REQUEST_NUMBER(request) == RM_ALLOC)
    pthread_once(&started, start);
  errno = error;
  return result;
}
