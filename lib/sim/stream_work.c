#include "stream_work.h"

#include "capture.h"
#include "timeline.h"

static CUresult find_for_work(CUstream handle, enum default_stream default_stream, struct stream **stream) {
  CUresult result = stream_find(handle, default_stream, stream);
  if (result == CUDA_SUCCESS && (*stream)->legacy)
    result = capture_check_legacy((*stream)->context, true);
  return result;
}

CUresult stream_enter(CUstream handle, enum default_stream default_stream, struct stream **stream) {
  for (;;) {
    CUresult result = driver_enter();
    if (result != CUDA_SUCCESS)
      return result;
    result = find_for_work(handle, default_stream, stream);
    if (result != CUDA_SUCCESS)
      return driver_leave(result);
    unsigned group = (*stream)->context->group;
    if (timeline_has_room(group))
      return CUDA_SUCCESS;
    driver_leave(CUDA_SUCCESS);
    timeline_wait_for_room(group);
  }
}
