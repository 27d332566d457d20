/* Threads that launch on one stream, wait, and ask, all at once, with no GPU: what is outstanding comes to an end, and
 * each launch is counted once. And claims that threads leave behind. */
#include "base/claim.h"
#include "base/clock.h"
#include "check.h"
#include "compute/outstanding.h"

#include <pthread.h>
#include <sched.h>

#define THREADS 4
#define LAUNCHES 20000

static bool no(void *stream) {
  (void)stream;
  return false;
}

static bool yes(void *stream) {
  (void)stream;
  return true;
}

static void nothing(struct meter *meter) {
  (void)meter;
}

static struct meter_terms no_limit(const void *owner) {
  (void)owner;
  return (struct meter_terms){.percents = {VGPU_NO_SM_LIMIT}};
}

static const struct meter_driver driver = {
    .now_ns = clock_now_ns, .sleep_ns = clock_sleep_ns, .is_capturing = no, .is_idle = yes, .is_here = yes};

static struct meter *meter;
static struct meter_stream *stream;
static bool done;

static void *launch_often(void *argument) {
  for (int i = 0; i < LAUNCHES; i++) {
    outstanding_launch(stream, clock_now_ns());
    outstanding_launched(stream, 0);
    if (i % 32 == 0)
      outstanding_done(stream, clock_now_ns());
  }
  return argument;
}

static void *ask_often(void *argument) {
  uint32_t *launches = argument;
  while (!__atomic_load_n(&done, __ATOMIC_RELAXED)) {
    int64_t before_ns = clock_now_ns();
    outstanding_ask(meter, before_ns);
    outstanding_all_done(meter, stream, before_ns);
    *launches += atomic_exchange(&meter->launches, 0);
    sched_yield();
  }
  return NULL;
}

static void check_launches(void) {
  pthread_t launching[THREADS], asking;
  uint32_t launches = 0;
  int64_t began_ns = clock_now_ns();
  CHECK(pthread_create(&asking, NULL, ask_often, &launches) == 0, "a thread");
  for (int i = 0; i < THREADS; i++)
    CHECK(pthread_create(&launching[i], NULL, launch_often, NULL) == 0, "a thread");
  for (int i = 0; i < THREADS; i++)
    pthread_join(launching[i], NULL);
  __atomic_store_n(&done, true, __ATOMIC_RELAXED);
  pthread_join(asking, NULL);
  launches += atomic_exchange(&meter->launches, 0);
  CHECK(launches == THREADS * LAUNCHES, "%u launches", launches);
  outstanding_all_done(meter, NULL, INT64_MAX);
  int64_t now_ns = clock_now_ns(), total_ns = outstanding_take_ns(meter, now_ns);
  CHECK(!outstanding_any(meter), "something is outstanding");
  CHECK(total_ns >= 0 && total_ns <= 2 * (now_ns - began_ns), "%lld of %lld ns", (long long)total_ns,
        (long long)(now_ns - began_ns));
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

static void *take_and_leave(void *lock) {
  claim_take(lock);
  return NULL;
}

/* A siglongjmp out of a call leaves a claim behind, and so does a thread that ends. */
static void check_claims_left_behind(void) {
  pthread_t leaving;
  int32_t lock = 0;
  CHECK(pthread_create(&leaving, NULL, take_and_leave, &lock) == 0, "a thread");
  pthread_join(leaving, NULL);
  claim_take(&lock); /* its thread has ended */
  claim_take(&lock); /* its own */
  claim_release(&lock);
  CHECK(lock == 0, "given back");
}

int main(void) {
  meter = calloc(1, sizeof *meter);
  meter->driver = &driver;
  meter->terms = no_limit;
  meter->note_work = nothing;
  stream = meter_add_stream(meter, &meter, &meter);
  check_claims_left_behind();
  check_claim_that_is_kept();
  check_launches();
  return 0;
}
