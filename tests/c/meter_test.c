/* The meter on a GPU and a clock of our own. */
#include "cases.h"
#include "fake_gpu.h"

#include <math.h>

#include <pthread.h>
#include <sched.h>
#include <unistd.h>

struct program {
  int64_t kernel_ns;
  int64_t think_ns; /* the host's own work between launches */
  bool synchronizes;
};

/* Completed work a second, after half a second to settle. */
static double rate(struct program program, uint32_t percent, int64_t duration_ns) {
  start_over(percent);
  int64_t began_ns = 0;
  for (int64_t end_ns = now_ns + S / 2 + duration_ns; now_ns < end_ns; now_ns += program.think_ns) {
    if (began_ns == 0 && now_ns >= end_ns - duration_ns) {
      began_ns = now_ns;
      worked_ns = 0;
    }
    launch(stream, program.kernel_ns, 1);
    if (program.synchronizes)
      synchronize();
  }
  return (double)worked_ns / (double)(now_ns - began_ns);
}

static void check_shares(void) {
  const struct program programs[] = {{200 * MS, 0, false}, {5 * MS, 0, false},        {MS, 0, false},
                                     {50 * US, 0, false},  {50 * US, 0, true},        {4 * US, 0, false},
                                     {5 * MS, 0, true},    {200 * US, 10 * US, true}, {300 * US, 200 * US, true},
                                     {MS, 200 * US, true}, {5 * MS, 400 * US, true}};
  const uint32_t percents[] = {10, 25, 50, 75, 90};
  for (size_t i = 0; i < sizeof programs / sizeof *programs; i++) {
    int64_t duration_ns = programs[i].kernel_ns > 100 * MS ? 120 * S : 10 * S;
    double alone = rate(programs[i], VGPU_NO_SM_LIMIT, duration_ns); /* 100 %: never waits */
    for (size_t p = 0; p < sizeof percents / sizeof *percents; p++) {
      double share = 100 * rate(programs[i], percents[p], duration_ns), most = fmin(percents[p], 100 * alone);
      printf("%9lld ns kernels%s at %2u %%: %.2f %%\n", (long long)programs[i].kernel_ns,
             programs[i].synchronizes ? ", synchronised," : "", percents[p], share);
      CHECK(share > most - 1 && share < most + 1, "%lld ns kernels at %u %%: %.2f %%", (long long)programs[i].kernel_ns,
            percents[p], share);
    }
  }
}

/* Some kernels of a name take much longer than the others, and a wait tells the end of each to a tenth of a
 * millisecond: the short ones among them are charged what is usual. */
static double rate_of_varied_kernels(uint32_t percent, int longs) {
  start_over(percent);
  worked_ns = 0;
  int64_t began_ns = now_ns;
  for (int i = 0; i < 40000; i++) {
    launch(stream, i % 100 < longs ? 500 * US : 50 * US, 1);
    synchronize();
  }
  CHECK((double)device.busy_ns >= 0.93 * (double)worked_ns || percent == VGPU_NO_SM_LIMIT, "charged %lld of %lld us",
        (long long)device.busy_ns / 1000, (long long)worked_ns / 1000);
  return (double)worked_ns / (double)(now_ns - began_ns);
}

static void check_varied_kernels_are_charged(void) {
  static const int longs[] = {1, 10, 50};
  for (int i = 0; i < 3; i++) {
    double share = 100 * rate_of_varied_kernels(50, longs[i]);
    printf("%d of 100 kernels are longer: %.2f %%\n", longs[i], share);
    CHECK(share > 46 && share < 54, "%d: %.2f %%", longs[i], share);
  }
}

/* The first batch tells how both clocks lie to each other; nobody looked when it ended. */
static void check_first_cost(void) {
  int64_t cost_ns = 0;
  start_over(50);
  launch(stream, 2 * MS, 1);
  now_ns += 20 * MS;
  meter_harvest(meter);
  CHECK(meter_known_cost(meter, 1, &cost_ns) && cost_ns > 1900 * US && cost_ns < 2100 * US, "learned %lld us",
        (long long)cost_ns / 1000);
}

/* A training of PyTorch has some 200: each is a function, at an address like these, and the size of its grid. */
static void check_many_works_stay_known(void) {
  enum { WORKS = 1000 };
  start_over(50);
  int64_t cost_ns;
  for (int round = 0; round < 3; round++)
    for (uint64_t i = 1; i <= WORKS; i++)
      launch(stream, 20 * US, 0x5581c0de0000 + i / 4 * 0x1d0 + (i % 4 << 56));
  synchronize();
  int unknown = 0;
  for (uint64_t i = 1; i <= WORKS; i++)
    unknown += !meter_known_cost(meter, 0x5581c0de0000 + i / 4 * 0x1d0 + (i % 4 << 56), &cost_ns);
  CHECK(unknown == 0, "%d of %d kernels are not known", unknown, WORKS);
}

/* Telling the other GPU takes some microseconds, which a program that waits for short work on two GPUs in turn would
 * lose each time. */
static void check_the_other_gpu_is_told_now_and_then(void) {
  struct vgpu_device_shared on_other = {.uuid = "GPU"};
  struct device_state other = {.memory = &on_other}, *devices[] = {&state, &other, NULL};
  int told = 0;
  start_over(50);
  meter->buckets[0].others = devices;
  for (int i = 0; i < 1000; i++) {
    int64_t before_ns = device.last_launch_ns;
    on_other.last_launch_ns = now_ns;
    launch(stream, 5 * US, 1);
    synchronize();
    told += device.last_launch_ns != before_ns;
  }
  printf("told %d of 1000 times\n", told);
  CHECK(told > 20 && told < 100, "%d of 1000 times", told);
}

/* 30 % of the GPU of its own accord: half of it is plenty. */
static void check_idle_program_is_not_slowed(void) {
  const struct program programs[] = {{300 * US, 700 * US, false}, {300 * US, 700 * US, true}, {30 * MS, 70 * MS, true}};
  for (size_t i = 0; i < sizeof programs / sizeof *programs; i++) {
    double alone = rate(programs[i], VGPU_NO_SM_LIMIT, 10 * S), limited = rate(programs[i], 50, 10 * S);
    CHECK(limited > 0.99 * alone, "program %zu: %.3f of %.3f", i, limited, alone);
  }
}

/* Bursts without a synchronisation, then silence: the silence is not charged. */
static void check_idle_tail_is_not_charged(void) {
  start_over(50);
  for (int burst = 0; burst < 200; burst++) {
    for (int i = 0; i < 5; i++)
      launch(stream, 20 * US, 1);
    now_ns += 20 * MS;
  }
  synchronize();
  CHECK(device.busy_ns < 40 * MS, "charged %lld us for 20 ms of work", (long long)device.busy_ns / 1000);
}

static void check_mixed_kernels(void) {
  start_over(50);
  worked_ns = 0;
  int64_t began_ns = now_ns;
  for (int i = 0; now_ns < began_ns + 20 * S; i++)
    launch(stream, (i % 40 == 39 ? 3000 : i % 7 * 15 + 3) * US, (uint64_t)(i % 40 == 39 ? 99 : i % 7 + 1));
  double share = 100 * (double)worked_ns / (double)(now_ns - began_ns);
  CHECK(share > 49 && share < 51.5, "%.2f %%", share);
}

static void check_two_streams_pay_for_their_union(void) {
  start_over(50);
  struct meter_stream *other = meter_add_stream(meter, &now_ns, &device);
  worked_ns = 0;
  int64_t began_ns = now_ns;
  while (now_ns < began_ns + 20 * S) {
    launch(stream, 100 * US, 1);
    launch(other, 100 * US, 1);
  }
  double share = 100 * (double)worked_ns / (double)(now_ns - began_ns);
  CHECK(share > 49 && share < 51.5, "%.2f %%", share);
}

/* Nothing is recorded while a stream captures, and nothing waits. */
static void check_capture(void) {
  start_over(1);
  for (int i = 0; i < 1000; i++)
    launch(stream, MS, 1);
  capturing = true;
  int64_t began_ns = now_ns;
  for (int i = 0; i < 1000; i++)
    launch(stream, MS, 1);
  CHECK(now_ns - began_ns < 50 * MS, "waited %lld us in a capture", (long long)(now_ns - began_ns) / 1000);
  capturing = false;
  for (int i = 0; i < 100; i++)
    launch(stream, MS, 1);
  synchronize();
}

/* A kernel that never ends must not hold up the launch that would end it. */
static void check_work_that_never_ends(void) {
  start_over(50);
  for (int i = 0; i < 10; i++)
    launch(stream, 10 * US, 1);
  gpu_free_at_ns = now_ns + 100000 * S;
  int64_t began_ns = now_ns;
  for (int i = 0; i < 300; i++)
    launch(stream, 10 * US, (uint64_t)i % 3);
  CHECK(now_ns - began_ns < 5 * S / 2, "stalled %lld ms", (long long)(now_ns - began_ns) / 1000000);
}

static void check_lost_markers(void) {
  start_over(50);
  launch(stream, 10 * US, 1);
  lose_markers = true; /* as after an error of the context */
  int64_t began_ns = now_ns;
  for (int i = 0; i < 5000; i++)
    launch(stream, 10 * US, 1);
  CHECK(now_ns - began_ns < 500 * MS, "stalled %lld ms", (long long)(now_ns - began_ns) / 1000000);
}

/* A process that ends with an error of its kernel's has had the GPU until then. */
static void check_lost_work_is_paid_for(void) {
  start_over(50);
  int64_t began_ns = now_ns;
  launch(stream, 30 * MS, 1);
  now_ns = began_ns + 30 * MS;
  lose_markers = true;
  meter_harvest(meter);
  int64_t paid_ns = device.tokens_zero_at_ns - (began_ns - bucket_wall_ns(BUCKET_BURST_NS, 50));
  CHECK(llabs(paid_ns - 60 * MS) < MS, "paid for %lld us", (long long)paid_ns / 2000);
}

/* A context is destroyed without a wait: its work is charged until then, and not what is paid before that is known. */
static void check_work_of_a_destroyed_context_is_paid_for(int64_t took_ns) {
  start_over(50);
  int64_t began_ns = now_ns;
  launch(stream, took_ns, 1);
  bool paused = meter_pause(meter);
  now_ns = began_ns + took_ns; /* the driver destroys it */
  meter_remove_context(meter, &now_ns);
  markers_are_gone = true;
  meter_resume(meter, paused);
  CHECK(llabs((int64_t)device.busy_ns - took_ns) < MS / 10, "charged %lld us of %lld", (long long)device.busy_ns / 1000,
        (long long)took_ns / 1000);
}

static void leave_a_batch_open(void) {
  start_over(50);
  launch(stream, 10 * US, 1); /* its cost is unknown, and it is a batch of its own */
  synchronize();
  launch(stream, 10 * US, 1); /* measured alone */
  synchronize();
  now_ns += 10 * US;
  launch(stream, 10 * US, 1);
  CHECK(stream->open, "this one may be followed by more");
}

/* The handle of a default stream means another stream where another context is current. */
static void check_streams_of_other_contexts(void) {
  leave_a_batch_open();
  int markers_before = markers_alive;
  elsewhere = true;
  meter_close_all(meter);
  CHECK(stream->open && markers_alive == markers_before, "left open");
  elsewhere = false;
  meter_close_all(meter);
  CHECK(!stream->open && markers_alive == markers_before + 1, "closed where it is");
}

static void wait_for_all(void) {
  meter_before_wait_all(meter);
  now_ns += 2 * MS;
  meter_after_wait_all(meter, now_ns);
}

/* Another thread may be capturing its stream, and then to ask is to end the capture. */
static void check_streams_of_other_threads(void) {
  leave_a_batch_open();
  int calls_before = calls_with_a_stream;
  stream->launcher--;
  now_ns += 2 * MS;
  wait_for_all();
  meter_close_all(meter);
  CHECK(stream->open && calls_with_a_stream == calls_before, "left alone");
  meter_end_all(meter);
  CHECK(!stream->open && calls_with_a_stream == calls_before, "ended without a question");
}

/* The thread waits for something else while its stream captures. */
static void check_wait_beside_a_capture(void) {
  leave_a_batch_open();
  int calls_before = calls_with_a_stream;
  capturing = true;
  now_ns += 2 * MS;
  wait_for_all();
  CHECK(calls_with_a_stream == calls_before, "nothing is asked");
}

/* Anything may stand in the file: what can never be owed is not waited for, and is put right. */
static void check_damaged_bucket(void) {
  start_over(50);
  for (int i = 0; i < 20; i++) {
    launch(stream, MS, 1);
    synchronize();
  }
  device.tokens_zero_at_ns = now_ns + 1000 * S;
  int64_t began_ns = now_ns;
  now_ns += MS; /* it is looked at anew */
  launch(stream, MS, 1);
  CHECK(now_ns - began_ns < 3 * S, "%lld ms", (long long)((now_ns - began_ns) / MS));
  synchronize();
  CHECK(device.tokens_zero_at_ns < now_ns + S, "%lld ms from now",
        (long long)((device.tokens_zero_at_ns - now_ns) / MS));
}

/* A program that waits or asks some microseconds after its launch, each time, costs no question of ours. */
static void check_waits_for_short_work(void) {
  start_over(50);
  for (int i = 0; i < 20; i++) {
    launch(stream, 50 * US, 1);
    synchronize();
    now_ns += MS;
  }
  launch(stream, 50 * US, 1);
  int before = calls_with_a_stream;
  for (; gpu_free_at_ns > now_ns; now_ns += US) {
    meter_before_wait_all(meter);
    meter_before_wait(stream);
  }
  CHECK(calls_with_a_stream == before, "%d", calls_with_a_stream - before);
  now_ns += 100 * US;
  meter_before_wait_all(meter);
  CHECK(calls_with_a_stream > before, "a batch stays open");
}

static void check_streams_come_and_go(void) {
  start_over(50);
  for (int i = 0; i < 5000; i++) {
    struct meter_stream *added = meter_add_stream(meter, &device, malloc(1));
    CHECK(added != NULL, "stream %d", i);
    void *handle = added->handle;
    launch(added, 10 * US, 1);
    meter_remove_stream(added);
    free(handle);
    now_ns += 100 * US;
  }
  CHECK(meter->stream_count < 100, "%u streams kept", meter->stream_count);
  for (int i = 0; i < 20; i++)
    launch(stream, MS, 1);
  bool paused = meter_pause(meter);
  meter_remove_context(meter, &now_ns);
  meter_resume(meter, paused);
  CHECK(meter->in_flight_batches == 0 && meter->in_flight_ns == 0, "nothing of it is in flight");
}

/* Another thread has had less, and a signal handler took it out of its wait for tokens: its place is kept for a while,
 * unless it came so much later. */
static void check_a_place_that_was_left(void) {
  static const int64_t later_ns[] = {-MS, 20 * MS}, waits_ns[] = {60 * MS, 0};
  for (int i = 0; i < 2; i++) {
    start_over(50);
    struct meter_stream *left = meter_add_stream(meter, &device, malloc(1));
    launch(stream, MS, 1);
    synchronize();
    int64_t began_ns = now_ns;
    left->waits_since_ns = began_ns + later_ns[i];
    meter->waits_until_ns = left->waits_until_ns = began_ns + 60 * MS;
    launch(stream, MS, 1);
    int64_t waited_ns = now_ns - began_ns;
    CHECK(llabs(waited_ns - waits_ns[i]) < MS, "waited for %lld us", (long long)waited_ns / 1000);
  }
}

static void *live_on(void *thread) {
  __atomic_store_n((int32_t *)thread, claim_this_thread(), __ATOMIC_RELEASE);
  pause();
  return NULL;
}

/* Returns a thread that lives until the test ends. */
static int32_t another_thread(void) {
  static int32_t number;
  pthread_t thread;
  CHECK(number != 0 || pthread_create(&thread, NULL, live_on, &number) == 0, "a thread");
  while (__atomic_load_n(&number, __ATOMIC_ACQUIRE) == 0)
    sched_yield();
  return number;
}

static void check_destroyed_context(const char *when, int32_t claimed_by, int32_t harvested_by) {
  start_over(50);
  for (int i = 0; i < 20; i++)
    launch(stream, MS, 1);
  CHECK(meter->in_flight_batches > 0, "work in flight");
  stream->claim = claimed_by;
  meter->harvester = harvested_by;
  uint32_t before = meter->in_flight_batches;
  bool paused = meter_pause(meter);
  CHECK(paused == (harvested_by == 0), "%s: nobody else harvests", when);
  meter_remove_context(meter, &now_ns);
  markers_are_gone = true;
  meter_resume(meter, paused);
  CHECK(meter->in_flight_batches == (paused ? 0 : before), "%s: left to the thread that harvests", when);
  if (!paused)
    claim_release(&meter->harvester);
  now_ns += S;
  meter_harvest(meter);
  CHECK(meter->in_flight_batches == 0 && meter->in_flight_ns == 0, "%s: nothing of it is in flight", when);
}

/* Shares within each other: a payment stands in each bucket, and the slowest lets launches through. */
static struct meter_terms nested;

static struct meter_terms nested_terms(const void *owner) {
  (void)owner;
  return nested;
}

static void check_shares_within_shares(void) {
  static const struct {
    uint32_t percents[VGPU_MAX_LEVELS]; /* the outermost first */
    bool yields;                        /* nobody else wants the GPU, and the outermost may have all of it */
    double share;
    int held_at;
  } rows[] = {{{60, 30, 100, 100}, false, 30, 1}, {{30, 60, 100, 100}, false, 30, 0},
              {{80, 70, 60, 20}, false, 20, 3},   {{100, 100, 25, 100}, false, 25, 2},
              {{30, 60, 100, 100}, true, 60, 1},  {{30, 100, 100, 100}, true, 100, -1},
              {{50, 50, 50, 50}, false, 50, 0}};
  for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
    struct vgpu_device_shared devices[VGPU_MAX_LEVELS] = {0};
    struct device_state states[VGPU_MAX_LEVELS] = {0};
    start_over(VGPU_NO_SM_LIMIT);
    meter->bucket_count = 0;
    for (int level = 0; level < VGPU_MAX_LEVELS; level++) {
      states[level].memory = &devices[level];
      meter_add_bucket(meter, &states[level], NULL);
      nested.percents[level] = rows[i].percents[level];
    }
    nested.yields = rows[i].yields;
    meter->terms = nested_terms;
    int64_t began_ns = now_ns;
    for (worked_ns = 0; now_ns < began_ns + 10 * S; synchronize())
      launch(stream, MS, 1);
    double share = 100.0 * (double)worked_ns / (double)(now_ns - began_ns);
    bool holds = rows[i].share < 100 ? fabs(share - rows[i].share) < 1 : share > 90;
    CHECK(holds, "row %zu: %.2f %%", i, share);
    for (int level = 0; level < VGPU_MAX_LEVELS; level++) {
      CHECK(devices[level].busy_ns == devices[0].busy_ns && devices[level].launches == devices[0].launches,
            "row %zu: level %d is told the same", i, level);
      bool holds_most = devices[level].throttled_ns > 2 * (uint64_t)S;
      CHECK(i == 6 || holds_most == (level == rows[i].held_at), "row %zu: held at %d for %llu ns", i, level,
            (unsigned long long)devices[level].throttled_ns);
    }
  }
}

int main(int count, char **names) {
  cases_begin(count, names);
  CASE("shares") check_shares();
  CASE("shares within shares") check_shares_within_shares();
  CASE("varied kernels are charged") check_varied_kernels_are_charged();
  CASE("first cost") check_first_cost();
  CASE("many works stay known") check_many_works_stay_known();
  CASE("idle program is not slowed") check_idle_program_is_not_slowed();
  CASE("idle tail is not charged") check_idle_tail_is_not_charged();
  CASE("mixed kernels") check_mixed_kernels();
  CASE("two streams pay for their union") check_two_streams_pay_for_their_union();
  CASE("capture") check_capture();
  CASE("work that never ends") check_work_that_never_ends();
  CASE("lost markers") check_lost_markers();
  CASE("lost work is paid for") check_lost_work_is_paid_for();
  CASE("short work of a destroyed context") check_work_of_a_destroyed_context_is_paid_for(MS);
  CASE("long work of a destroyed context") check_work_of_a_destroyed_context_is_paid_for(200 * MS);
  CASE("streams of other contexts") check_streams_of_other_contexts();
  CASE("streams of other threads") check_streams_of_other_threads();
  CASE("wait beside a capture") check_wait_beside_a_capture();
  CASE("streams come and go") check_streams_come_and_go();
  CASE("a place that was left") check_a_place_that_was_left();
  CASE("a damaged bucket") check_damaged_bucket();
  CASE("waits for short work") check_waits_for_short_work();
  CASE("another GPU at work") check_the_other_gpu_is_told_now_and_then();
  CASE("a destroyed context, at rest") check_destroyed_context("at rest", 0, 0);
  CASE("a destroyed context, claimed") check_destroyed_context("claimed", another_thread(), 0);
  CASE("a destroyed context, harvested") check_destroyed_context("harvested", 0, another_thread());
  return cases_end();
}
