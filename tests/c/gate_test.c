/* The gate on a GPU and a clock of our own: a stream is a time at which its work ends. */
#include "base/claim.h"
#include "cases.h"
#include "check.h"
#include "compute/gate.h"
#include "compute/outstanding.h"

#define MS 1000000LL
#define S (1000 * MS)

static int64_t now_ns, gpu_idle_at_ns, worked_ns, pause_ends_ns;
static int64_t held_ns; /* told by the observer */
static int questions;
static uint32_t limiter;
static bool is_capturing, spins;
static int settlements; /* for each of which the terms are asked */
static struct meter_terms terms;
static struct vgpu_device_shared shared;
static struct device_state state = {.memory = &shared};
static struct meter *meter;

struct stream {
  int64_t ends_ns;
  struct meter_stream *metered;
};
static struct stream streams[2];

static int64_t clock_ns(void) {
  return now_ns;
}

/* A thread that sleeps is late by a tenth of a millisecond. */
static void sleep_for(int64_t duration_ns) {
  CHECK(duration_ns > 0 && duration_ns <= 10 * MS, "%lld ns", (long long)duration_ns);
  now_ns += duration_ns + MS / 10;
  if (terms.paused && now_ns > pause_ends_ns)
    terms.paused = false;
}

static bool captures(void *stream) {
  (void)stream;
  return is_capturing;
}

/* A question takes a microsecond. */
static bool is_idle(void *stream) {
  now_ns += 1000;
  questions++;
  return !spins && ((struct stream *)stream)->ends_ns <= now_ns;
}

static bool is_here(void *context) {
  return context == &meter;
}

static const struct meter_driver driver = {
    .now_ns = clock_ns, .sleep_ns = sleep_for, .is_capturing = captures, .is_idle = is_idle, .is_here = is_here};

static struct meter_terms ask_terms(const void *owner) {
  (void)owner;
  settlements++;
  return terms;
}

static void note_waited(const struct meter *of, int64_t began_ns, int64_t ended_ns) {
  CHECK(of == meter && began_ns < ended_ns && ended_ns <= now_ns, "a wait");
  held_ns += ended_ns - began_ns;
}

static void note_limiter(const void *owner, uint32_t which) {
  (void)owner;
  limiter = which;
}

static void nothing(struct meter *meter) {
  (void)meter;
}

static const struct meter_observer observer = {.waited = note_waited};

static void start_over(uint32_t percent) {
  now_ns = gpu_idle_at_ns = 1000 * S;
  worked_ns = held_ns = 0;
  limiter = 0;
  is_capturing = spins = false;
  terms = (struct meter_terms){.percents = {percent}};
  shared = (struct vgpu_device_shared){0};
  meter = calloc(1, sizeof *meter);
  meter->driver = &driver;
  meter->holds_launches = true;
  meter->terms = ask_terms;
  meter->gate.account.meter = meter;
  meter->buckets[meter->bucket_count++].state = &state;
  meter->note_work = nothing;
  meter->note_limiter = note_limiter;
  meter->observer = &observer;
  for (int i = 0; i < 2; i++)
    streams[i] = (struct stream){0, meter_add_stream(meter, &meter, &streams[i])};
}

static void launch(struct stream *stream, int64_t kernel_ns) {
  gate_pass(stream->metered, now_ns);
  outstanding_launch(stream->metered, now_ns);
  now_ns += 5000;
  gpu_idle_at_ns = stream->ends_ns = (gpu_idle_at_ns > now_ns ? gpu_idle_at_ns : now_ns) + kernel_ns;
  worked_ns += kernel_ns;
  outstanding_launched(stream->metered, 0);
}

static void synchronize(struct stream *stream) {
  int64_t began_ns = now_ns;
  now_ns = now_ns > stream->ends_ns ? now_ns : stream->ends_ns;
  outstanding_done(stream->metered, began_ns);
  gate_settle_now_and_then(meter, now_ns);
}

static double share(uint32_t percent, int64_t kernel_ns, bool waits) {
  start_over(percent);
  int64_t began_ns = now_ns;
  while (now_ns < began_ns + 20 * S) {
    launch(&streams[0], kernel_ns);
    if (waits)
      synchronize(&streams[0]);
  }
  return 100.0 * (double)worked_ns / (double)(now_ns - began_ns);
}

/* The delay until the end of work is noticed is charged, too: nobody gets more than the limit, nor much less. */
static void check_shares(void) {
  static const int64_t kernels_ns[] = {MS / 20, MS, 5 * MS, 100 * MS};
  static const uint32_t percents[] = {10, 50, 80};
  for (int k = 0; k < 4; k++)
    for (int p = 0; p < 3; p++)
      for (int waits = 0; waits < 2; waits++) {
        double had = share(percents[p], kernels_ns[k], waits);
        printf("%lld us at %u%s: %.1f %%\n", (long long)kernels_ns[k] / 1000, percents[p], waits ? ", waiting" : "",
               had);
        CHECK(had < percents[p] + 2 && had > 0.8 * percents[p], "%.1f %% of %u", had, percents[p]);
      }
}

static void check_what_is_told(void) {
  share(50, MS, false);
  CHECK(limiter == VGPU_LIMITER_LAUNCHES, "limiter %u", limiter);
  gate_settle(meter);
  CHECK(shared.busy_ns > 9 * (uint64_t)S && shared.busy_ns < 11 * (uint64_t)S, "busy for %llu",
        (unsigned long long)shared.busy_ns);
  CHECK(shared.throttled_ns == (uint64_t)held_ns && held_ns > 5 * S, "held for %lld, and the file says %llu",
        (long long)held_ns, (unsigned long long)shared.throttled_ns);
  CHECK(shared.launches > 9000 && shared.last_launch_ns > now_ns - S, "%llu launches",
        (unsigned long long)shared.launches);
  share(99, 5 * MS, false);
  CHECK(held_ns < S, "to wait for its own work counted as held: %lld", (long long)held_ns);
}

/* A settlement takes some microseconds; and the container's other processes, and the host, go by the file. */
static void check_settlements(void) {
  start_over(80);
  settlements = 0;
  for (int64_t began_ns = now_ns; now_ns < began_ns + S;) {
    launch(&streams[0], MS / 100);
    synchronize(&streams[0]);
    CHECK(now_ns - shared.last_launch_ns < 3 * MS || settlements < 3, "the file is %lld us old",
          (long long)(now_ns - shared.last_launch_ns) / 1000);
    now_ns += MS / 10;
  }
  CHECK(settlements < 1100, "%d in a second", settlements);
}

/* Many short launches may be ahead, and the next ones be long. */
static void check_long_kernels_behind_short_ones(void) {
  start_over(80);
  for (int waits = 0; waits < 2; waits++) {
    for (int i = 0; i < 100000; i++) {
      launch(&streams[0], 1000);
      if (waits)
        synchronize(&streams[0]);
    }
    for (int i = 0; i < 1000; i++) {
      launch(&streams[0], MS);
      CHECK(gpu_idle_at_ns - now_ns < 300 * MS, "%lld ms ahead", (long long)(gpu_idle_at_ns - now_ns) / MS);
    }
  }
}

/* However fast it launches: some milliseconds, or a kernel. */
static void check_run_ahead(void) {
  start_over(80);
  for (int64_t began_ns = now_ns; now_ns < began_ns + 5 * S;) {
    launch(&streams[0], MS);
    CHECK(gpu_idle_at_ns - now_ns < 40 * MS || now_ns < began_ns + 50 * MS, "%lld ns ahead",
          (long long)(gpu_idle_at_ns - now_ns));
  }
}

/* What it waits for is worth the sleep, or the GPU would have nothing to do for a part of the time. */
static void check_the_gpu_is_kept_at_work(void) {
  for (int64_t kernel_ns = MS / 20; kernel_ns <= MS; kernel_ns *= 2) {
    double had = share(99, kernel_ns, false);
    printf("%lld us at 99: %.1f %%\n", (long long)kernel_ns / 1000, had);
    CHECK(had > 93, "%.1f %% of 99 with kernels of %lld us", had, (long long)kernel_ns / 1000);
  }
}

/* Tokens are kept over a rest. */
static void check_a_program_that_needs_less(void) {
  start_over(20);
  for (int round = 0; round < 50; round++) {
    for (int i = 0; i < 19; i++) {
      launch(&streams[0], MS);
      synchronize(&streams[0]);
    }
    now_ns += 81 * MS;
  }
  CHECK(held_ns == 0, "19 ms of each 100 at 20 were held for %lld us", (long long)held_ns / 1000);
}

/* Most work ends while a launch has patience, and is not joined by more. */
static void check_patience(void) {
  start_over(10);
  launch(&streams[0], 90 * MS);
  now_ns += 25 * MS;
  gate_pass(streams[1].metered, now_ns);
  CHECK(now_ns > gpu_idle_at_ns, "it went on %lld ms before the end", (long long)(gpu_idle_at_ns - now_ns) / MS);
}

static void check_nothing_is_held_without_a_limit(void) {
  CHECK(share(VGPU_NO_SM_LIMIT, MS, false) > 10000, "it is launched as fast as the program can");
  CHECK(held_ns == 0, "held for %lld", (long long)held_ns);
}

/* Work that spins until a launch on another stream has run: each comes after a bounded time. */
static void check_spins(void) {
  start_over(10);
  launch(&streams[0], 0);
  spins = true;
  now_ns += 50 * MS;
  for (int i = 0; i < 8; i++) {
    int64_t began_ns = now_ns;
    launch(&streams[1], 0);
    CHECK(now_ns - began_ns < 1100 * MS, "launch %d was held for %lld ms", i, (long long)(now_ns - began_ns) / MS);
    CHECK(i > 0 || now_ns - began_ns < 200 * MS, "the first one for %lld ms", (long long)(now_ns - began_ns) / MS);
  }
}

/* A thread that launches once and never waits for it does not cost its process the GPU. */
static void check_work_that_nobody_asks_for(void) {
  start_over(50);
  launch(&streams[1], MS);
  streams[1].metered->launcher = 1; /* another thread's */
  int64_t began_ns = now_ns;
  for (int i = 0; i < 2000; i++) {
    launch(&streams[0], MS);
    synchronize(&streams[0]);
  }
  CHECK(now_ns - began_ns < 8 * S, "2 s of kernels at 50 took %lld ms", (long long)(now_ns - began_ns) / MS);
}

static void renew(struct stream *stream) {
  gate_finish(stream->metered);
  meter_remove_stream(stream->metered);
  *stream = (struct stream){0, meter_add_stream(meter, &meter, stream)};
}

static double share_with_a_stream_each(uint32_t percent, int64_t kernel_ns) {
  start_over(percent);
  int64_t began_ns = now_ns;
  while (now_ns < began_ns + 20 * S) {
    launch(&streams[0], kernel_ns);
    renew(&streams[0]);
  }
  return 100.0 * (double)worked_ns / (double)(now_ns - began_ns);
}

/* Nobody waits for the work of a stream that is destroyed with it: its end is found, however short it is. */
static void check_streams_that_are_destroyed(void) {
  static const int64_t kernels_us[] = {20, 50, 90, 120, 150, 250, 400, 700, 1000, 1100, 1500, 3000, 20000};
  for (size_t k = 0; k < sizeof kernels_us / sizeof *kernels_us; k++) {
    questions = 0;
    double had = share_with_a_stream_each(20, kernels_us[k] * 1000);
    CHECK(questions < 1200 * (worked_ns / (kernels_us[k] * 1000)), "%d questions", questions);
    printf("%lld us: %.1f %%\n", (long long)kernels_us[k], had);
    CHECK(had > 16 && had < 22, "%.1f %% of 20 with kernels of %lld us", had, (long long)kernels_us[k]);
  }
  spins = true;
  launch(&streams[0], MS);
  int64_t began_ns = now_ns;
  renew(&streams[0]);
  CHECK(now_ns - began_ns < 1100 * MS, "a stream that spins was held for %lld ms", (long long)(now_ns - began_ns) / MS);
}

/* Whoever launches on a stream may ask for it, too: the thread that launched there before has ended. */
static void check_stream_of_another_thread(void) {
  start_over(50);
  launch(&streams[0], MS);
  streams[0].metered->launcher = 1;
  now_ns += 2 * MS;
  gate_pass(streams[0].metered, now_ns);
  CHECK(!outstanding_any(meter), "it is known to be done");
}

/* By then the driver has waited for the work. */
static void check_launches_that_block(void) {
  start_over(50);
  meter->launches_block = true;
  launch(&streams[0], MS);
  CHECK(!outstanding_any(meter), "it is known to be done");
}

static void check_pause(void) {
  start_over(VGPU_NO_SM_LIMIT);
  terms.paused = true;
  pause_ends_ns = 2000 * S;
  launch(&streams[0], MS);
  CHECK(now_ns > pause_ends_ns && held_ns > 999 * S, "it went on at %lld", (long long)(now_ns / S));
  now_ns += 10 * MS;
  spins = terms.paused = true;
  pause_ends_ns = now_ns + 5 * S;
  gate_pass(streams[1].metered, now_ns);
  CHECK(now_ns > pause_ends_ns, "it went on beside work, at %lld", (long long)(now_ns / S));
}

static void check_captures_are_not_held(void) {
  share(1, MS, false);
  is_capturing = true;
  int64_t began_ns = now_ns;
  gate_pass(streams[0].metered, now_ns);
  CHECK(now_ns == began_ns, "held for %lld", (long long)(now_ns - began_ns));
}

static void check_a_new_limit(void) {
  share(1, 100 * MS, false);
  int64_t began_ns = now_ns;
  terms.percents[0] = VGPU_NO_SM_LIMIT;
  gate_pass(streams[0].metered, now_ns);
  CHECK(now_ns - began_ns < S, "still held for %lld ms", (long long)(now_ns - began_ns) / MS);
}

static void enter(struct account *account, int64_t used_ns, int64_t since_ns) {
  account_enter(account, &(struct account_entry){.now_ns = now_ns, .used_ns = used_ns, .since_ns = since_ns});
}

/* Together no more than the time that passes, and all of it where they work one after the other. */
static void check_processes_of_a_container(void) {
  start_over(50);
  struct account one = {.meter = meter, .terms = terms}, other = one;
  for (int i = 0; i < 1000; i++) {
    now_ns += MS / 2;
    enter(&one, MS, now_ns - MS);
    now_ns += MS / 2;
    enter(&other, MS, now_ns - MS);
  }
  CHECK(shared.busy_ns <= (uint64_t)S + MS && shared.busy_ns > (uint64_t)S - 2 * MS, "at once: %llu",
        (unsigned long long)shared.busy_ns);
  start_over(50);
  one = other = (struct account){.meter = meter, .terms = terms};
  for (int i = 0; i < 1000; i++) {
    now_ns += MS / 2;
    enter(&one, MS / 2, now_ns - MS);
    now_ns += MS / 2;
    enter(&other, MS / 2, now_ns - MS);
  }
  CHECK(shared.busy_ns > (uint64_t)S - 2 * MS, "one after the other: %llu", (unsigned long long)shared.busy_ns);
  shared.charged_until_ns = INT64_MAX;
  enter(&one, MS, now_ns - MS);
  CHECK(shared.charged_until_ns == now_ns, "damage: %lld", (long long)shared.charged_until_ns);
}

int main(int argument_count, char **names) {
  cases_begin(argument_count, names);
  CASE("shares") check_shares();
  CASE("what is told") check_what_is_told();
  CASE("settlements") check_settlements();
  CASE("run-ahead") check_run_ahead();
  CASE("long kernels behind short ones") check_long_kernels_behind_short_ones();
  CASE("the GPU is kept at work") check_the_gpu_is_kept_at_work();
  CASE("a program that needs less") check_a_program_that_needs_less();
  CASE("patience") check_patience();
  CASE("without a limit") check_nothing_is_held_without_a_limit();
  CASE("spins") check_spins();
  CASE("work that nobody asks for") check_work_that_nobody_asks_for();
  CASE("streams that are destroyed") check_streams_that_are_destroyed();
  CASE("stream of another thread") check_stream_of_another_thread();
  CASE("launches that block") check_launches_that_block();
  CASE("pause") check_pause();
  CASE("captures") check_captures_are_not_held();
  CASE("a new limit") check_a_new_limit();
  CASE("processes of a container") check_processes_of_a_container();
  return cases_end();
}
