#include "scheduler/samples.h"

#include "base/compiler.h"

#include "cases.h"
#include "check.h"

#include <string.h>

#define MS 1000000LL
#define BEGIN (1000000 * MS)
#define TICK (10 * MS)
#define SAMPLE (200 * MS)

/* A process that is on for part of each tick, in which the GPU computes for part of what it has. */
static struct {
  struct samples samples;
  int64_t now_ns, charged_ns;
  uint32_t percent; /* percent of the time, by the GPU's count */
  bool refuses;
} gpu;

static int ask(const void *device, int64_t since_ns, struct gpu_sample samples[SAMPLES_MOST]) {
  (void)device;
  int count = 0;
  if (gpu.refuses)
    return -1;
  int64_t at_ns = max(since_ns, gpu.now_ns - 4 * SAMPLE) / SAMPLE * SAMPLE + SAMPLE;
  for (; at_ns <= gpu.now_ns; at_ns += SAMPLE)
    samples[count++] = (struct gpu_sample){at_ns, gpu.percent};
  return count;
}

static void begin(uint32_t percent) {
  memset(&gpu, 0, sizeof gpu);
  gpu.samples.ask = ask;
  gpu.now_ns = BEGIN;
  gpu.percent = percent;
}

/* Goes on for so many ticks, and returns what was charged in them in percent of the time. */
static double run(int ticks, int64_t had_ns, bool is_alone) {
  gpu.charged_ns = 0;
  for (int i = 0; i < ticks; i++) {
    gpu.now_ns += TICK;
    gpu.charged_ns += samples_charge(&gpu.samples, gpu.now_ns, had_ns);
    samples_look(&gpu.samples, is_alone);
  }
  return 100.0 * (double)gpu.charged_ns / (double)(ticks * TICK);
}

static void check_gaps(void) {
  begin(50);
  CHECK(run(20, TICK, true) == 100, "nothing is known yet");
  run(40, TICK, true);
  double percent = run(100, TICK, true);
  CHECK(percent > 49 && percent < 52, "half of it, %.1f", percent);
  gpu.percent = 99;
  run(20, TICK, true);
  percent = run(20, TICK, true);
  CHECK(percent > 70, "no more is given back than there was, %.1f", percent);
  percent = run(100, TICK, true);
  CHECK(percent > 98, "flat out, %.1f", percent);
}

static void check_uneven_gaps(void) {
  begin(50);
  double percent = 0;
  for (int i = 0; i < 20; i++) {
    gpu.percent = i % 2 == 0 ? 50 : 25;
    percent += run(20, gpu.percent * TICK / 50, true) / 10;
    percent = i == 9 ? 0 : percent; /* until then it settles */
  }
  CHECK(percent > 37 && percent < 39, "half of what was had, from one sample to the next, %.1f", percent);
}

static void check_rounding(void) {
  begin(19);
  run(60, 2 * MS, true);
  CHECK(run(100, 2 * MS, true) == 20, "19 percent of 20 is all of it");
}

static void check_company(void) {
  begin(50);
  run(100, TICK, true);
  run(1, TICK, false);
  CHECK(run(100, TICK, false) == 100, "what others do is in it, too");
  CHECK(run(20, TICK, true) == 100, "what was before is not compared");
}

/* Its own work without a limit, or others'. */
static void check_what_was_before(void) {
  begin(0);
  run(25, TICK, true);
  CHECK(gpu.samples.credit_ns == 0, "nobody knows what was had of a sample in which it began");
}

static void check_what_is_given_back(void) {
  begin(0);
  run(60, TICK, true);
  int64_t credit_ns = gpu.samples.credit_ns;
  CHECK(credit_ns > 100 * MS, "nothing was done in 200 ms");
  CHECK(samples_give_back(&gpu.samples, -MS) == 0 && samples_give_back(&gpu.samples, 5 * MS) == 5 * MS, "no more");
  CHECK(samples_give_back(&gpu.samples, INT64_MAX) == credit_ns - 5 * MS, "and all of it");
  CHECK(samples_give_back(&gpu.samples, INT64_MAX) == 0, "once");
}

static void check_silence(void) {
  begin(50);
  gpu.refuses = true;
  run(20, TICK, true);
  gpu.refuses = false;
  CHECK(run(100, TICK, true) == 100 && gpu.samples.ask == NULL, "a driver without samples is not asked again");
}

int main(int count, char **names) {
  cases_begin(count, names);
  CASE("gaps") check_gaps();
  CASE("uneven gaps") check_uneven_gaps();
  CASE("rounding") check_rounding();
  CASE("company") check_company();
  CASE("what was before") check_what_was_before();
  CASE("what is given back") check_what_is_given_back();
  CASE("silence") check_silence();
  return cases_end();
}
