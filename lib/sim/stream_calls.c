/* The calls that make, end, query and await streams. */
#include "capture.h"
#include "stream_work.h"
#include "synchronize.h"
#include "times.h"

static CUresult create(CUstream *handle, unsigned flags, int priority) {
  struct context *context;
  FORWARD_IF_ERROR(context_enter(&context));
  if (!handle || (flags & ~(unsigned)CU_STREAM_NON_BLOCKING))
    return driver_leave(CUDA_ERROR_INVALID_VALUE);
  struct stream *stream = stream_new(context, flags, priority);
  if (!stream)
    return driver_leave(CUDA_ERROR_OUT_OF_MEMORY);
  *handle = stream->handle;
  return driver_leave(CUDA_SUCCESS);
}

CUresult CUDAAPI cuStreamCreate(CUstream *stream, unsigned int flags) {
  return create(stream, flags, 0);
}

CUresult CUDAAPI cuStreamCreateWithPriority(CUstream *stream, unsigned int flags, int priority) {
  return create(stream, flags, priority);
}

CUresult CUDAAPI cuStreamDestroy_v2(CUstream handle) {
  FORWARD_IF_ERROR(driver_enter());
  struct stream *stream = handle_object(HANDLE_STREAM, handle);
  if (!stream || stream->legacy)
    return driver_leave(CUDA_ERROR_INVALID_HANDLE);
  capture_abandon(stream);
  stream_delete(stream);
  return driver_leave(CUDA_SUCCESS);
}

CUresult CUDAAPI cuStreamDestroy(CUstream handle) {
  return cuStreamDestroy_v2(handle);
}

static CUresult cuStreamQuery_on(CUstream handle, enum default_stream default_stream) {
  struct stream *stream;
  FORWARD_IF_ERROR(stream_enter(handle, default_stream, &stream));
  CUresult result = capture_check_stream_wait(stream);
  if (result == CUDA_SUCCESS && !time_has_come(stream_tail(stream)))
    result = CUDA_ERROR_NOT_READY;
  return driver_leave(result);
}

static CUresult cuStreamSynchronize_on(CUstream handle, enum default_stream default_stream) {
  struct stream *stream;
  FORWARD_IF_ERROR(stream_enter(handle, default_stream, &stream));
  CUresult result = capture_check_stream_wait(stream);
  if (result != CUDA_SUCCESS)
    return driver_leave(result);
  return synchronize_and_leave(stream_tail(stream));
}

STREAM_API(cuStreamQuery, cuStreamQuery_ptsz, (CUstream stream), stream)
STREAM_API(cuStreamSynchronize, cuStreamSynchronize_ptsz, (CUstream stream), stream)

/* Queries that leave a capture alone. */
static CUresult enter_query(CUstream handle, enum default_stream default_stream, const void *output,
                            struct stream **stream) {
  FORWARD_IF_ERROR(driver_enter());
  CUresult result = output ? stream_find(handle, default_stream, stream) : CUDA_ERROR_INVALID_VALUE;
  return result == CUDA_SUCCESS ? CUDA_SUCCESS : driver_leave(result);
}

/* Defines a function, and its per-thread twin, with one answer about a stream. */
#define STREAM_QUERY(name, twin, type, answer)                                                                         \
  static CUresult name##_on(CUstream handle, type *output, enum default_stream default_stream) {                       \
    struct stream *stream;                                                                                             \
    FORWARD_IF_ERROR(enter_query(handle, default_stream, output, &stream));                                            \
    *output = answer;                                                                                                  \
    return driver_leave(CUDA_SUCCESS);                                                                                 \
  }                                                                                                                    \
  STREAM_API(name, twin, (CUstream stream, type * output), stream, output)

STREAM_QUERY(cuStreamGetPriority, cuStreamGetPriority_ptsz, int, stream->priority)
STREAM_QUERY(cuStreamGetFlags, cuStreamGetFlags_ptsz, unsigned int, stream->flags)
STREAM_QUERY(cuStreamGetId, cuStreamGetId_ptsz, unsigned long long, stream->id)
STREAM_QUERY(cuStreamGetCtx, cuStreamGetCtx_ptsz, CUcontext, stream->context->handle)
