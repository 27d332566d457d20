#include "stream/profile_markers.h"

#include "base/claim.h"
#include "device/devices.h"
#include "device/process.h"

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

void profile_markers_recycle(void *marker_) {
  if (marker_ == NULL)
    return;
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

void *profile_markers_record(CUstream stream) {
  CUcontext context = NULL;
  CUstreamCaptureMode mode = capture_relax();
  struct marker *marker = NULL;
  if (real.cuCtxGetCurrent(&context) == CUDA_SUCCESS && context != NULL) {
    marker = take(context);
    if (marker == NULL)
      marker = make(context);
    if (marker != NULL && real.cuEventRecord(marker->event, stream) != CUDA_SUCCESS) {
      profile_markers_recycle(marker);
      marker = NULL;
    }
  }
  capture_restore(mode);
  return marker;
}

enum marker_state profile_markers_query(void *marker) {
  CUstreamCaptureMode mode = capture_relax();
  CUresult result = real.cuEventQuery(((struct marker *)marker)->event);
  capture_restore(mode);
  return result == CUDA_SUCCESS ? MARKER_DONE : result == CUDA_ERROR_NOT_READY ? MARKER_PENDING : MARKER_LOST;
}

bool profile_markers_elapsed_ns(void *start, void *end, int64_t *elapsed_ns) {
  float milliseconds;
  CUstreamCaptureMode mode = capture_relax();
  CUresult result =
      real.cuEventElapsedTime(&milliseconds, ((struct marker *)start)->event, ((struct marker *)end)->event);
  capture_restore(mode);
  *elapsed_ns = (int64_t)((double)milliseconds * 1e6);
  return result == CUDA_SUCCESS;
}

void profile_markers_forget_context(CUcontext context) {
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
