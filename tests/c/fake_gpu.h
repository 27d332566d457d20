/* A GPU and a clock for tests of the meter alone: a stream is a time at which its work ends, a marker a time. */
#ifndef FAKE_GPU_H
#define FAKE_GPU_H

#include "base/bucket.h"
#include "check.h"
#include "compute/meter.h"
#include "compute/meter_parts.h"

#include <stdlib.h>
#include <string.h>

#define US 1000LL
#define MS 1000000LL
#define S 1000000000LL

#define HOST_LAUNCH_NS (3 * US)
#define WAKE_UP_NS (5 * US)    /* from the end of the GPU's work to the end of a wait for it */
#define OVERSLEEP_NS (60 * US) /* Linux' timer slack and the way back */

static int64_t now_ns;
static int64_t gpu_free_at_ns; /* streams take turns on one GPU */
static bool capturing;
static bool lose_markers;
static bool markers_are_gone; /* with their context: they must not be touched */
static int markers_alive;
static int calls_with_a_stream; /* that a capture of it would not survive */

static inline int64_t fake_now(void) {
  return now_ns += 25;
}

static struct vgpu_device_shared device;
static struct device_state state = {.memory = &device};

static inline void fake_sleep(int64_t duration_ns) {
  now_ns += duration_ns + OVERSLEEP_NS;
  CHECK(now_ns < 6000 * S, "a wait without end");
}

static inline void *fake_record(void *stream) {
  (void)stream;
  calls_with_a_stream++;
  if (capturing)
    return NULL;
  now_ns += US;
  int64_t *marker = malloc(sizeof *marker);
  *marker = gpu_free_at_ns > now_ns ? gpu_free_at_ns : now_ns;
  markers_alive++;
  return marker;
}

static inline void fake_recycle(void *marker) {
  CHECK(!markers_are_gone, "recycled");
  markers_alive--;
  free(marker);
}

static inline enum meter_state fake_query(void *marker) {
  CHECK(!markers_are_gone, "queried");
  now_ns += 200;
  return lose_markers ? METER_LOST : *(int64_t *)marker <= now_ns ? METER_DONE : METER_PENDING;
}

static inline bool fake_elapsed(void *start, void *end, int64_t *elapsed_ns) {
  float milliseconds = (float)((double)(*(int64_t *)end - *(int64_t *)start) / 1e6); /* as cuEventElapsedTime answers */
  *elapsed_ns = (int64_t)((double)milliseconds * 1e6);
  return true;
}

static inline bool fake_is_capturing(void *stream) {
  (void)stream;
  return capturing;
}

static inline bool fake_is_idle(void *stream) {
  (void)stream;
  calls_with_a_stream++;
  return gpu_free_at_ns <= now_ns;
}

static bool elsewhere;

static inline bool fake_is_here(void *context) {
  (void)context;
  return !elsewhere;
}

static const struct meter_driver driver = {fake_now,     fake_sleep,        fake_record,  fake_recycle, fake_query,
                                           fake_elapsed, fake_is_capturing, fake_is_idle, fake_is_here};

static struct meter *meter;
static struct meter_stream *stream;

static struct meter_terms fake_terms(const void *percent) {
  return (struct meter_terms){.percents = {*(const uint32_t *)percent}, .takes_turns = true};
}

static inline void start_over(uint32_t percent) {
  static uint32_t limit;
  limit = percent;
  now_ns = gpu_free_at_ns = 5000 * S;
  capturing = lose_markers = markers_are_gone = false;
  device = (struct vgpu_device_shared){0};
  free(meter);
  meter = calloc(1, sizeof *meter);
  meter_init(meter, &driver, fake_terms, &limit);
  meter_add_bucket(meter, &state, NULL);
  stream = meter_add_stream(meter, &now_ns, &now_ns);
}

static int64_t worked_ns;
static inline void launch(struct meter_stream *on, int64_t kernel_ns, uint64_t work) {
  bool metered = meter_launch(on, work, fake_now());
  now_ns += HOST_LAUNCH_NS;
  if (!capturing) {
    gpu_free_at_ns = (gpu_free_at_ns > now_ns ? gpu_free_at_ns : now_ns) + kernel_ns;
    worked_ns += kernel_ns;
  }
  if (meter->launches_block)
    now_ns = gpu_free_at_ns;
  if (metered)
    meter_launched(on);
}

static inline void synchronize(void) {
  meter_before_wait(stream);
  if (gpu_free_at_ns > now_ns)
    now_ns = gpu_free_at_ns;
  now_ns += WAKE_UP_NS;
  meter_after_wait(stream, METER_STREAM_IS_IDLE, fake_now());
  meter_harvest(meter);
}

#endif
