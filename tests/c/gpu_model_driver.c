/* The driver as the meter sees it. */
#include "gpu_model_parts.h"

#include <stdlib.h>

/* A stream's handle is its meter_stream's place in the process: that tells the GPU and the number. */
static void find(void *handle, int *gpu, int *stream) {
  struct meter_stream **place = handle;
  *gpu = (int)((place - &model.current->of->streams[0][0]) / MODEL_STREAMS);
  *stream = (int)((place - &model.current->of->streams[0][0]) % MODEL_STREAMS);
}

static void *record(void *handle) {
  int gpu, stream;
  find(handle, &gpu, &stream);
  model_pass_time(US);
  struct marker *marker = calloc(1, sizeof *marker);
  model_enqueue(model.current, gpu, stream, (struct item){.marker = marker});
  return marker;
}

static void recycle(void *marker_) {
  struct marker *marker = marker_;
  if (marker->at_ns == 0)
    marker->orphan = true;
  else
    free(marker);
}

static enum meter_state query(void *marker) {
  model_pass_time(200);
  model_advance(model.current->now_ns);
  return ((struct marker *)marker)->at_ns != 0 ? METER_DONE : METER_PENDING;
}

void model_lose_clock(void) {
  model.has_no_clock = true;
}

/* Answers as cuEventElapsedTime does, in milliseconds of single precision. */
static bool elapsed(void *start, void *end, int64_t *elapsed_ns) {
  float milliseconds = (float)((double)(((struct marker *)end)->at_ns - ((struct marker *)start)->at_ns) / 1e6);
  *elapsed_ns = model.has_no_clock ? 0 : (int64_t)((double)milliseconds * 1e6);
  return !model.has_no_clock;
}

static bool is_capturing(void *handle) {
  (void)handle;
  return false;
}

static bool is_idle(void *handle) {
  int gpu, stream;
  find(handle, &gpu, &stream);
  model_pass_time(200);
  model_advance(model.current->now_ns);
  return model_pending(model.current, gpu, stream) == 0;
}

static bool is_here(void *context) {
  (void)context;
  return true;
}

const struct meter_driver model_driver = {model_clock_ns, model_sleep,  record,  recycle, query,
                                          elapsed,        is_capturing, is_idle, is_here};
