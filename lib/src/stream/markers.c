#include "device/process.h"
#include "stream/meters.h"

#include "base/claim.h"
#include "base/clock.h"
#include "device/devices.h"

#include <stdlib.h>

struct marker {
  CUevent event;
  CUcontext context;
  struct marker *next;
};

static int32_t lock; /* a claim that guards the list */
static struct marker *unused;

static struct marker *take(CUcontext context) {
  claim_take(&lock);
  struct marker **link = &unused;
  while (*link != NULL && (*link)->context != context)
    link = &(*link)->next;
  struct marker *marker = *link;
  if (marker != NULL)
    *link = marker->next;
  claim_release(&lock);
  return marker;
}

static void recycle(void *marker_) {
  struct marker *marker = marker_;
  claim_take(&lock);
  marker->next = unused;
  unused = marker;
  claim_release(&lock);
}

static struct marker *make(CUcontext context) {
  struct marker *marker = calloc(1, sizeof *marker);
  if (marker == NULL)
    return NULL;
  marker->context = context;
  if (real.cuEventCreate(&marker->event, CU_EVENT_DEFAULT) == CUDA_SUCCESS)
    return marker;
  free(marker);
  return NULL;
}

static void *record(void *stream) {
  CUcontext context = NULL;
  CUstreamCaptureMode mode = capture_relax();
  struct marker *marker = NULL;
  if (real.cuCtxGetCurrent(&context) == CUDA_SUCCESS && context != NULL) {
    marker = take(context);
    if (marker == NULL)
      marker = make(context);
    if (marker != NULL && real.cuEventRecord(marker->event, stream) != CUDA_SUCCESS) {
      recycle(marker);
      marker = NULL;
    }
  }
  capture_restore(mode);
  return marker;
}

static enum meter_state query(void *marker) {
  CUstreamCaptureMode mode = capture_relax();
  CUresult result = real.cuEventQuery(((struct marker *)marker)->event);
  capture_restore(mode);
  return result == CUDA_SUCCESS ? METER_DONE : result == CUDA_ERROR_NOT_READY ? METER_PENDING : METER_LOST;
}

static bool elapsed_ns(void *start, void *end, int64_t *elapsed_ns) {
  float milliseconds;
  CUstreamCaptureMode mode = capture_relax();
  CUresult result =
      real.cuEventElapsedTime(&milliseconds, ((struct marker *)start)->event, ((struct marker *)end)->event);
  capture_restore(mode);
  *elapsed_ns = (int64_t)((double)milliseconds * 1e6);
  return result == CUDA_SUCCESS;
}

/* Any other answer than "no" means that nothing may be recorded: the legacy stream answers with an error while another
 * stream captures. */
static bool is_capturing(void *stream) {
  CUstreamCaptureStatus status;
  return real.cuStreamIsCapturing(stream, &status) != CUDA_SUCCESS || status != CU_STREAM_CAPTURE_STATUS_NONE;
}

static bool is_idle(void *stream) {
  CUstreamCaptureMode mode = capture_relax();
  CUresult result = real.cuStreamQuery(stream);
  capture_restore(mode);
  return result == CUDA_SUCCESS;
}

static bool is_here(void *context) {
  CUcontext current = NULL;
  return real.cuCtxGetCurrent(&current) == CUDA_SUCCESS && current == context;
}

const struct meter_driver markers_driver = {
    .now_ns = quick_clock_ns,
    .sleep_ns = signals_sleep_ns,
    .record = record,
    .recycle = recycle,
    .query = query,
    .elapsed_ns = elapsed_ns,
    .is_capturing = is_capturing,
    .is_idle = is_idle,
    .is_here = is_here,
};

void markers_forget_context(CUcontext context) {
  claim_take(&lock);
  struct marker **link = &unused;
  while (*link != NULL) {
    struct marker *marker = *link;
    if (marker->context == context) {
      *link = marker->next;
      free(marker);
    } else
      link = &marker->next;
  }
  claim_release(&lock);
}

static void markers_forget(void) {
  lock = 0;
  unused = NULL;
}
PROCESS_IN_CHILD(markers_forget);
