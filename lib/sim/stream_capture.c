/* The calls that begin, end and query a capture. */
#include "capture.h"
#include "streams.h"

static CUresult cuStreamBeginCapture_v2_on(CUstream handle, CUstreamCaptureMode mode,
                                           enum default_stream default_stream) {
  struct stream *stream;
  FORWARD_IF_ERROR(driver_enter());
  CUresult result = stream_find(handle, default_stream, &stream);
  return driver_leave(result == CUDA_SUCCESS ? capture_begin(stream, mode) : result);
}

/* The first version had no mode: it was global. */
static CUresult cuStreamBeginCapture_on(CUstream stream, enum default_stream default_stream) {
  return cuStreamBeginCapture_v2_on(stream, CU_STREAM_CAPTURE_MODE_GLOBAL, default_stream);
}

STREAM_API(cuStreamBeginCapture, cuStreamBeginCapture_ptsz, (CUstream stream), stream)
STREAM_API(cuStreamBeginCapture_v2, cuStreamBeginCapture_v2_ptsz, (CUstream stream, CUstreamCaptureMode mode), stream,
           mode)

static CUresult cuStreamEndCapture_on(CUstream handle, CUgraph *graph_handle, enum default_stream default_stream) {
  struct stream *stream;
  struct graph *graph;
  FORWARD_IF_ERROR(driver_enter());
  if (!graph_handle)
    return driver_leave(CUDA_ERROR_INVALID_VALUE);
  *graph_handle = NULL;
  CUresult result = stream_find(handle, default_stream, &stream);
  if (result == CUDA_SUCCESS)
    result = capture_end(stream, &graph);
  if (result == CUDA_SUCCESS)
    *graph_handle = graph->handle;
  return driver_leave(result);
}

STREAM_API(cuStreamEndCapture, cuStreamEndCapture_ptsz, (CUstream stream, CUgraph *graph), stream, graph)

static CUstreamCaptureStatus status_of(const struct stream *stream) {
  if (!stream->capture)
    return CU_STREAM_CAPTURE_STATUS_NONE;
  return stream->capture->invalid ? CU_STREAM_CAPTURE_STATUS_INVALIDATED : CU_STREAM_CAPTURE_STATUS_ACTIVE;
}

/* Asking after the legacy stream while it could not be used says so, and spoils nothing. */
static CUresult enter_status(CUstream handle, enum default_stream default_stream, const void *output,
                             struct stream **stream) {
  FORWARD_IF_ERROR(driver_enter());
  CUresult result = output ? stream_find(handle, default_stream, stream) : CUDA_ERROR_INVALID_VALUE;
  if (result == CUDA_SUCCESS && (*stream)->legacy)
    result = capture_check_legacy((*stream)->context, false);
  return result == CUDA_SUCCESS ? CUDA_SUCCESS : driver_leave(result);
}

static CUresult cuStreamIsCapturing_on(CUstream handle, CUstreamCaptureStatus *status,
                                       enum default_stream default_stream) {
  struct stream *stream;
  FORWARD_IF_ERROR(enter_status(handle, default_stream, status, &stream));
  *status = status_of(stream);
  return driver_leave(CUDA_SUCCESS);
}

STREAM_API(cuStreamIsCapturing, cuStreamIsCapturing_ptsz, (CUstream stream, CUstreamCaptureStatus *status), stream,
           status)

static CUresult cuStreamGetCaptureInfo_on(CUstream handle, CUstreamCaptureStatus *status, cuuint64_t *id,
                                          enum default_stream default_stream) {
  struct stream *stream;
  FORWARD_IF_ERROR(enter_status(handle, default_stream, status, &stream));
  *status = status_of(stream);
  if (id && stream->capture)
    *id = stream->capture->id;
  return driver_leave(CUDA_SUCCESS);
}

STREAM_API(cuStreamGetCaptureInfo, cuStreamGetCaptureInfo_ptsz,
           (CUstream stream, CUstreamCaptureStatus *status, cuuint64_t *id), stream, status, id)

/* A graph here has no edges: a program that asks for the last nodes is told that this is not simulated. */
static CUresult cuStreamGetCaptureInfo_v2_on(CUstream handle, CUstreamCaptureStatus *status, cuuint64_t *id,
                                             CUgraph *graph, const CUgraphNode **dependencies, size_t *count,
                                             enum default_stream default_stream) {
  struct stream *stream;
  if (driver_check_ready() != CUDA_SUCCESS)
    return CUDA_ERROR_NOT_INITIALIZED;
  if (dependencies || count)
    return CUDA_ERROR_NOT_SUPPORTED;
  FORWARD_IF_ERROR(enter_status(handle, default_stream, status, &stream));
  *status = status_of(stream);
  if (id && stream->capture)
    *id = stream->capture->id;
  if (graph && stream->capture)
    *graph = stream->capture->graph->handle;
  return driver_leave(CUDA_SUCCESS);
}

static CUresult cuStreamGetCaptureInfo_v3_on(CUstream stream, CUstreamCaptureStatus *status, cuuint64_t *id,
                                             CUgraph *graph, const CUgraphNode **dependencies,
                                             const CUgraphEdgeData **edges, size_t *count,
                                             enum default_stream default_stream) {
  if (edges && driver_check_ready() == CUDA_SUCCESS)
    return CUDA_ERROR_NOT_SUPPORTED;
  return cuStreamGetCaptureInfo_v2_on(stream, status, id, graph, dependencies, count, default_stream);
}

STREAM_API(cuStreamGetCaptureInfo_v2, cuStreamGetCaptureInfo_v2_ptsz,
           (CUstream stream, CUstreamCaptureStatus *status, cuuint64_t *id, CUgraph *graph,
            const CUgraphNode **dependencies, size_t *count),
           stream, status, id, graph, dependencies, count)
STREAM_API(cuStreamGetCaptureInfo_v3, cuStreamGetCaptureInfo_v3_ptsz,
           (CUstream stream, CUstreamCaptureStatus *status, cuuint64_t *id, CUgraph *graph,
            const CUgraphNode **dependencies, const CUgraphEdgeData **edges, size_t *count),
           stream, status, id, graph, dependencies, edges, count)
