/* Threads that launch on one stream, end its batches and harvest: each launch is in one batch, and each batch comes to
 * its end once. */
#include "base/claim.h"
#include "base/clock.h"
#include "check.h"
#include "compute/meter.h"

#include <pthread.h>
#include <sched.h>
#include <stdlib.h>

#define THREADS 4
#define LAUNCHES 20000

static void sleep_shortly(int64_t duration_ns) {
  (void)duration_ns;
  sched_yield();
}

static void *record(void *stream) {
  (void)stream;
  return malloc(1);
}

static enum meter_state query(void *marker) {
  (void)marker;
  return METER_DONE;
}

static bool elapsed(void *start, void *end, int64_t *elapsed_ns) {
  (void)start, (void)end;
  *elapsed_ns = 1000;
  return true;
}

static bool never(void *stream) {
  (void)stream;
  return false;
}

static bool is_here(void *context) {
  (void)context;
  return true;
}

static const struct meter_driver driver = {clock_now_ns, sleep_shortly, record, free,   query,
                                           elapsed,      never,         never,  is_here};

static uint64_t joined, ended;

static void count_joined(struct batch *batch, int64_t expected_ns) {
  (void)expected_ns;
  batch->parts = (char *)batch->parts + 1; /* of this batch: its claim is all that guards it */
  __atomic_add_fetch(&joined, 1, __ATOMIC_RELAXED);
}

static void count_ended(const struct meter_stream *stream, const struct batch *batch, int64_t start_ns,
                        int64_t end_ns) {
  (void)stream, (void)start_ns, (void)end_ns;
  CHECK((uintptr_t)batch->parts == batch->launches, "%u launches", batch->launches);
  __atomic_add_fetch(&ended, batch->launches, __ATOMIC_RELAXED);
}

static void ignore_span(const struct meter *meter, int64_t began_ns, int64_t ended_ns) {
  (void)meter, (void)began_ns, (void)ended_ns;
}

static struct meter_terms no_limit(const void *owner) {
  (void)owner;
  return (struct meter_terms){.percents = {VGPU_NO_SM_LIMIT}};
}

static const struct meter_observer observer = {count_joined, count_ended, ignore_span, ignore_span};
static struct vgpu_device_shared device;
static struct device_state state = {.memory = &device};
static struct meter *meter;
static struct meter_stream *stream;
static bool done;

static void wait_once(void) {
  meter_close_all(meter);
  meter_before_wait(stream);
  meter_after_wait(stream, METER_STREAM_MAY_BE_BUSY, clock_now_ns());
}

static void *launch_often(void *argument) {
  for (uint64_t i = 0; i < LAUNCHES; i++) {
    if (meter_launch(stream, 1 + (i + (uintptr_t)argument) % 3, clock_now_ns()))
      meter_launched(stream);
    if (i % 32 == 0)
      wait_once();
  }
  return NULL;
}

static void *wait_often(void *argument) {
  (void)argument;
  while (!__atomic_load_n(&done, __ATOMIC_RELAXED)) {
    meter_end_all(meter);
    meter_harvest(meter);
    wait_once();
    sched_yield();
  }
  return NULL;
}

static void *launch_and_leave(void *argument) {
  CHECK(meter_launch(stream, 7, clock_now_ns()), "of unknown cost, it is a batch of its own");
  return argument;
}

static bool taken, over;

static void *take_and_stay(void *lock) {
  claim_take(lock);
  __atomic_store_n(&taken, true, __ATOMIC_RELEASE);
  while (!__atomic_load_n(&over, __ATOMIC_ACQUIRE))
    clock_sleep_ns(1000000);
  return NULL;
}

/* By a thread that lives and does something else: nobody waits for ever. */
static void check_claim_that_is_kept(void) {
  pthread_t keeping;
  int32_t lock = 0;
  CHECK(pthread_create(&keeping, NULL, take_and_stay, &lock) == 0, "a thread");
  while (!__atomic_load_n(&taken, __ATOMIC_ACQUIRE))
    clock_sleep_ns(1000000);
  claim_take(&lock);
  CHECK(claim_is_own(&lock), "taken");
  __atomic_store_n(&over, true, __ATOMIC_RELEASE);
  pthread_join(keeping, NULL);
}

/* A siglongjmp out of a launch leaves the claim behind: meter_launched is not called. */
static void check_claims_left_behind(void) {
  pthread_t leaving;
  CHECK(pthread_create(&leaving, NULL, launch_and_leave, NULL) == 0, "a thread");
  pthread_join(leaving, NULL);
  launch_and_leave(NULL); /* of one that has ended */
  launch_and_leave(NULL); /* its own */
  meter_launched(stream);
  CHECK(stream->claim == 0, "given back");
  int32_t lock = 0;
  claim_take(&lock);
  claim_take(&lock);
  claim_release(&lock);
  CHECK(lock == 0, "given back");
}

int main(void) {
  pthread_t launching[THREADS], waiting;
  meter = calloc(1, sizeof *meter);
  meter_init(meter, &driver, no_limit, NULL);
  meter_add_bucket(meter, &state, NULL);
  stream = meter_add_stream(meter, &device, &device);
  check_claims_left_behind();
  check_claim_that_is_kept();
  meter->observer = &observer;
  stream = meter_add_stream(meter, &device, &meter);
  CHECK(pthread_create(&waiting, NULL, wait_often, NULL) == 0, "a thread");
  for (uintptr_t i = 0; i < THREADS; i++)
    CHECK(pthread_create(&launching[i], NULL, launch_often, (void *)i) == 0, "a thread");
  for (int i = 0; i < THREADS; i++)
    pthread_join(launching[i], NULL);
  __atomic_store_n(&done, true, __ATOMIC_RELAXED);
  pthread_join(waiting, NULL);
  meter_end_all(meter);
  meter_harvest(meter);
  CHECK(joined > LAUNCHES && ended == joined, "%llu launches in batches, %llu of them ended",
        (unsigned long long)joined, (unsigned long long)ended);
  CHECK(meter->in_flight_batches == 0 && meter->in_flight_ns == 0, "nothing is in flight");
  return 0;
}
