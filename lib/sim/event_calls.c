/* The calls for events. */
#include <stdlib.h>

#include "capture.h"
#include "events.h"
#include "stream_work.h"
#include "synchronize.h"
#include "times.h"

#define TICK_NS 500 /* the resolution of a card's event clock */
#define ALL_FLAGS (CU_EVENT_BLOCKING_SYNC | CU_EVENT_DISABLE_TIMING | CU_EVENT_INTERPROCESS)

CUresult CUDAAPI cuEventCreate(CUevent *handle, unsigned int flags) {
  struct context *context;
  FORWARD_IF_ERROR(context_enter(&context));
  if (!handle || (flags & ~(unsigned)ALL_FLAGS))
    return driver_leave(CUDA_ERROR_INVALID_VALUE);
  if ((flags & CU_EVENT_INTERPROCESS) && !(flags & CU_EVENT_DISABLE_TIMING))
    return driver_leave(CUDA_ERROR_INVALID_VALUE);
  struct event *event = calloc(1, sizeof *event);
  if (event)
    event->handle = handle_new(HANDLE_EVENT, event);
  if (!event || !event->handle) {
    free(event);
    return driver_leave(CUDA_ERROR_OUT_OF_MEMORY);
  }
  event->context = context;
  event->flags = flags;
  *handle = event->handle;
  return driver_leave(CUDA_SUCCESS);
}

static CUresult enter_event(CUevent handle, struct event **event) {
  FORWARD_IF_ERROR(driver_enter());
  *event = handle_object(HANDLE_EVENT, handle);
  return *event ? CUDA_SUCCESS : driver_leave(CUDA_ERROR_INVALID_HANDLE);
}

CUresult CUDAAPI cuEventDestroy_v2(CUevent handle) {
  struct event *event;
  FORWARD_IF_ERROR(enter_event(handle, &event));
  event_delete(event);
  return driver_leave(CUDA_SUCCESS);
}

CUresult CUDAAPI cuEventDestroy(CUevent handle) {
  return cuEventDestroy_v2(handle);
}

/* In a capture, an event marks a place in the graph; an external one becomes a node that records it. */
static CUresult capture_record(struct event *event, struct stream *stream, unsigned flags) {
  if (stream->capture->invalid)
    return CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
  if (flags & CU_EVENT_RECORD_EXTERNAL)
    return capture_add(stream, (struct graph_node){.type = CU_GRAPH_NODE_TYPE_EVENT_RECORD, .event = event->handle});
  event->recorded = false;
  event->capture_id = stream->capture->id;
  event->capture_stream = stream->handle;
  event->captured = stream->captured;
  return CUDA_SUCCESS;
}

static CUresult cuEventRecordWithFlags_on(CUevent handle, CUstream stream_handle, unsigned int flags,
                                          enum default_stream default_stream) {
  struct stream *stream;
  FORWARD_IF_ERROR(stream_enter(stream_handle, default_stream, &stream));
  struct event *event = handle_object(HANDLE_EVENT, handle);
  if (!event || event->context != stream->context)
    return driver_leave(CUDA_ERROR_INVALID_HANDLE);
  if (flags & ~(unsigned)CU_EVENT_RECORD_EXTERNAL)
    return driver_leave(CUDA_ERROR_INVALID_VALUE);
  if (stream->capture)
    return driver_leave(capture_record(event, stream, flags));
  uint64_t time_ns = max_u64(clock_ns(), time_known(stream_tail(stream)));
  stream_wait_until(stream, time_ns);
  event_record_at(event, time_ns);
  return driver_leave(CUDA_SUCCESS);
}

static CUresult cuEventRecord_on(CUevent event, CUstream stream, enum default_stream default_stream) {
  return cuEventRecordWithFlags_on(event, stream, CU_EVENT_RECORD_DEFAULT, default_stream);
}

STREAM_API(cuEventRecord, cuEventRecord_ptsz, (CUevent event, CUstream stream), event, stream)
STREAM_API(cuEventRecordWithFlags, cuEventRecordWithFlags_ptsz, (CUevent event, CUstream stream, unsigned int flags),
           event, stream, flags)

static CUresult cuStreamWaitEvent_on(CUstream stream_handle, CUevent handle, unsigned int flags,
                                     enum default_stream default_stream) {
  struct stream *stream;
  FORWARD_IF_ERROR(stream_enter(stream_handle, default_stream, &stream));
  struct event *event = handle_object(HANDLE_EVENT, handle);
  if (!event)
    return driver_leave(CUDA_ERROR_INVALID_HANDLE);
  if (flags & ~(unsigned)CU_EVENT_WAIT_EXTERNAL)
    return driver_leave(CUDA_ERROR_INVALID_VALUE);
  if (stream->capture || event->capture_id)
    return driver_leave(capture_wait_event(stream, event));
  if (event->recorded)
    stream_wait_until(stream, event->time_ns);
  return driver_leave(CUDA_SUCCESS);
}

STREAM_API(cuStreamWaitEvent, cuStreamWaitEvent_ptsz, (CUstream stream, CUevent event, unsigned int flags), stream,
           event, flags)

static CUresult check_host_wait(const struct event *event) {
  return event->capture_id ? capture_refuse_event(event) : capture_check_unsafe_call();
}

CUresult CUDAAPI cuEventQuery(CUevent handle) {
  struct event *event;
  FORWARD_IF_ERROR(enter_event(handle, &event));
  CUresult result = check_host_wait(event);
  if (result == CUDA_SUCCESS && event->recorded && !time_has_come(event->time_ns))
    result = CUDA_ERROR_NOT_READY;
  return driver_leave(result);
}

CUresult CUDAAPI cuEventSynchronize(CUevent handle) {
  struct event *event;
  FORWARD_IF_ERROR(enter_event(handle, &event));
  CUresult result = check_host_wait(event);
  if (result != CUDA_SUCCESS || !event->recorded)
    return driver_leave(result);
  return synchronize_and_leave(event->time_ns);
}

static CUresult check_timed(const struct event *event) {
  if (!event)
    return CUDA_ERROR_INVALID_HANDLE;
  if (event->capture_id)
    return CUDA_ERROR_CAPTURED_EVENT;
  if (!event->recorded || (event->flags & CU_EVENT_DISABLE_TIMING))
    return CUDA_ERROR_INVALID_HANDLE;
  return CUDA_SUCCESS;
}

CUresult CUDAAPI cuEventElapsedTime(float *milliseconds, CUevent start_handle, CUevent end_handle) {
  FORWARD_IF_ERROR(driver_enter());
  if (!milliseconds)
    return driver_leave(CUDA_ERROR_INVALID_VALUE);
  const struct event *start = handle_object(HANDLE_EVENT, start_handle);
  const struct event *end = handle_object(HANDLE_EVENT, end_handle);
  CUresult result = check_timed(start);
  if (result == CUDA_SUCCESS)
    result = check_timed(end);
  if (result != CUDA_SUCCESS)
    return driver_leave(result);
  uint64_t start_ns = time_known(start->time_ns), end_ns = time_known(end->time_ns);
  if (max_u64(start_ns, end_ns) > clock_ns())
    return driver_leave(CUDA_ERROR_NOT_READY);
  int64_t ticks = (int64_t)(end_ns / TICK_NS) - (int64_t)(start_ns / TICK_NS);
  *milliseconds = (float)((double)ticks * TICK_NS / (double)NS_PER_MS);
  return driver_leave(CUDA_SUCCESS);
}

CUresult CUDAAPI cuEventElapsedTime_v2(float *milliseconds, CUevent start, CUevent end) {
  return cuEventElapsedTime(milliseconds, start, end);
}
