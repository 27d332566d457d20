/* Executable graphs: instantiate, launch, destroy. */
#include <stdlib.h>

#include "capture.h"
#include "events.h"
#include "graphs.h"
#include "launch.h"
#include "streams.h"

/* An executable graph is a copy: the graph that it came from may go. */
static CUresult instantiate(CUgraphExec *handle, CUgraph graph_handle) {
  CUresult result = driver_enter();
  if (result != CUDA_SUCCESS)
    return result;
  const struct graph *graph = handle_object(HANDLE_GRAPH, graph_handle);
  if (!handle || !graph)
    return driver_leave(CUDA_ERROR_INVALID_VALUE);
  result = capture_check_unsafe_call();
  if (result != CUDA_SUCCESS)
    return driver_leave(result);
  struct graph *copy = graph_new();
  void *exec = copy && graph_append(copy, graph) ? handle_new(HANDLE_GRAPH_EXEC, copy) : NULL;
  if (!exec) {
    if (copy)
      graph_delete(copy);
    return driver_leave(CUDA_ERROR_OUT_OF_MEMORY);
  }
  *handle = exec;
  return driver_leave(CUDA_SUCCESS);
}

CUresult CUDAAPI cuGraphInstantiate(CUgraphExec *exec, CUgraph graph, CUgraphNode *error_node, char *log,
                                    size_t log_size) {
  if (error_node)
    *error_node = NULL;
  if (log && log_size)
    *log = '\0';
  return instantiate(exec, graph);
}

CUresult CUDAAPI cuGraphInstantiate_v2(CUgraphExec *exec, CUgraph graph, CUgraphNode *error_node, char *log,
                                       size_t log_size) {
  return cuGraphInstantiate(exec, graph, error_node, log, log_size);
}

CUresult CUDAAPI cuGraphInstantiateWithFlags(CUgraphExec *exec, CUgraph graph, unsigned long long flags) {
  if (driver_check_ready() != CUDA_SUCCESS)
    return CUDA_ERROR_NOT_INITIALIZED;
  if (flags & ~0xfULL)
    return CUDA_ERROR_INVALID_VALUE;
  return instantiate(exec, graph);
}

CUresult CUDAAPI cuGraphExecDestroy(CUgraphExec exec) {
  CUresult result = driver_enter();
  if (result != CUDA_SUCCESS)
    return result;
  struct graph *graph = handle_object(HANDLE_GRAPH_EXEC, exec);
  if (!graph)
    return driver_leave(CUDA_ERROR_INVALID_VALUE);
  handle_delete(exec);
  graph_delete(graph);
  return driver_leave(CUDA_SUCCESS);
}

static CUresult cuGraphUpload_on(CUgraphExec exec, CUstream handle, enum default_stream default_stream) {
  struct stream *stream;
  CUresult result = stream_enter(handle, default_stream, &stream);
  if (result != CUDA_SUCCESS)
    return result;
  return driver_leave(handle_object(HANDLE_GRAPH_EXEC, exec) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE);
}

STREAM_API(cuGraphUpload, cuGraphUpload_ptsz, (CUgraphExec exec, CUstream stream), exec, stream)

static void run(struct stream *stream, const struct graph *graph) {
  uint64_t whole_ns = 0;
  for (size_t i = 0; i < graph->count; i++)
    whole_ns += graph->nodes[i].duration_ns;
  uint64_t end_ns = stream_queue(stream, whole_ns);
  stream_count_launch(stream, end_ns);
  uint64_t at_ns = end_ns - whole_ns;
  for (size_t i = 0; i < graph->count; i++) {
    at_ns += graph->nodes[i].duration_ns;
    struct event *event = handle_object(HANDLE_EVENT, graph->nodes[i].event);
    if (event)
      event_record_at(event, at_ns);
  }
}

static CUresult capture_launch(struct stream *stream, const struct graph *graph) {
  for (size_t i = 0; i < graph->count; i++) {
    CUresult result = capture_add(stream, graph->nodes[i]);
    if (result != CUDA_SUCCESS)
      return result;
  }
  return CUDA_SUCCESS;
}

static CUresult cuGraphLaunch_on(CUgraphExec exec, CUstream handle, enum default_stream default_stream) {
  struct stream *stream;
  CUresult result = launch_enter(handle, default_stream, &stream);
  if (result != CUDA_SUCCESS)
    return result;
  uint64_t return_at_ns = launch_return_at(stream);
  struct graph *graph = handle_object(HANDLE_GRAPH_EXEC, exec);
  if (!graph)
    return driver_leave(CUDA_ERROR_INVALID_VALUE);
  if (stream->capture)
    return driver_leave(capture_launch(stream, graph));
  run(stream, graph);
  driver_leave(CUDA_SUCCESS);
  clock_spin_until(return_at_ns);
  return CUDA_SUCCESS;
}

STREAM_API(cuGraphLaunch, cuGraphLaunch_ptsz, (CUgraphExec exec, CUstream stream), exec, stream)
