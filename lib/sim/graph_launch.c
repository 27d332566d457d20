/* Executable graphs: instantiate, launch, destroy. */
#include <stdlib.h>

#include "capture.h"
#include "events.h"
#include "graph_runs.h"
#include "launch.h"
#include "stream_work.h"

#define MAX_EVENTS 512 /* events of a graph: each ends a piece of the queue */

/* A copy: the graph that it came from may go. */
struct executable {
  struct graph *work;
  CUgraph source;
  bool frees_on_launch;
};

static void delete_executable(struct executable *executable) {
  if (executable->work)
    graph_delete(executable->work);
  free(executable);
}

static struct executable *new_executable(const struct graph *graph, unsigned long long flags) {
  struct executable *executable = calloc(1, sizeof *executable);
  if (!executable)
    return NULL;
  *executable = (struct executable){.work = graph_new(),
                                    .source = graph->handle,
                                    .frees_on_launch = flags & CUDA_GRAPH_INSTANTIATE_FLAG_AUTO_FREE_ON_LAUNCH};
  if (executable->work && graph_append(executable->work, graph))
    return executable;
  delete_executable(executable);
  return NULL;
}

static CUresult instantiate(CUgraphExec *handle, CUgraph graph_handle, unsigned long long flags) {
  FORWARD_IF_ERROR(driver_enter());
  struct graph *graph = handle_object(HANDLE_GRAPH, graph_handle);
  if (!handle || !graph)
    return driver_leave(CUDA_ERROR_INVALID_VALUE);
  if (graph->memory_nodes && graph->executables)
    return driver_leave(CUDA_ERROR_NOT_SUPPORTED);
  CUresult result = capture_check_unsafe_call();
  if (result != CUDA_SUCCESS)
    return driver_leave(result);
  struct executable *executable = new_executable(graph, flags);
  void *exec = executable ? handle_new(HANDLE_GRAPH_EXEC, executable) : NULL;
  if (!exec) {
    if (executable)
      delete_executable(executable);
    return driver_leave(CUDA_ERROR_OUT_OF_MEMORY);
  }
  graph->executables++;
  *handle = exec;
  return driver_leave(CUDA_SUCCESS);
}

CUresult CUDAAPI cuGraphInstantiate(CUgraphExec *exec, CUgraph graph, CUgraphNode *error_node, char *log,
                                    size_t log_size) {
  if (error_node)
    *error_node = NULL;
  if (log && log_size)
    *log = '\0';
  return instantiate(exec, graph, 0);
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
  return instantiate(exec, graph, flags);
}

CUresult CUDAAPI cuGraphExecDestroy(CUgraphExec exec) {
  FORWARD_IF_ERROR(driver_enter());
  struct executable *executable = handle_object(HANDLE_GRAPH_EXEC, exec);
  if (!executable)
    return driver_leave(CUDA_ERROR_INVALID_VALUE);
  struct graph *source = handle_object(HANDLE_GRAPH, executable->source);
  if (source)
    source->executables--;
  handle_delete(exec);
  delete_executable(executable);
  return driver_leave(CUDA_SUCCESS);
}

/* A graph of the same nodes takes the place of the work, with other sizes and durations. */
static bool update(struct executable *executable, const struct graph *graph) {
  const struct graph *before = executable->work;
  bool alike = before->count == graph->count;
  for (size_t i = 0; alike && i < graph->count; i++)
    alike = before->nodes[i]->type == graph->nodes[i]->type;
  struct executable *replacement = alike ? new_executable(graph, 0) : NULL;
  if (!replacement)
    return false;
  graph_delete(executable->work);
  executable->work = replacement->work;
  free(replacement);
  return true;
}

CUresult CUDAAPI cuGraphExecUpdate(CUgraphExec exec, CUgraph graph_handle, CUgraphNode *error_node,
                                   CUgraphExecUpdateResult *outcome) {
  FORWARD_IF_ERROR(driver_enter());
  struct executable *executable = handle_object(HANDLE_GRAPH_EXEC, exec);
  const struct graph *graph = handle_object(HANDLE_GRAPH, graph_handle);
  if (!executable || !graph || !outcome)
    return driver_leave(CUDA_ERROR_INVALID_VALUE);
  bool updated = update(executable, graph);
  if (error_node)
    *error_node = NULL;
  *outcome = updated ? CU_GRAPH_EXEC_UPDATE_SUCCESS : CU_GRAPH_EXEC_UPDATE_ERROR_TOPOLOGY_CHANGED;
  return driver_leave(updated ? CUDA_SUCCESS : CUDA_ERROR_GRAPH_EXEC_UPDATE_FAILURE);
}

CUresult CUDAAPI cuGraphExecUpdate_v2(CUgraphExec exec, CUgraph graph, CUgraphExecUpdateResultInfo *info) {
  if (!info)
    return CUDA_ERROR_INVALID_VALUE;
  *info = (CUgraphExecUpdateResultInfo){0};
  return cuGraphExecUpdate(exec, graph, NULL, &info->result);
}

static CUresult cuGraphUpload_on(CUgraphExec exec, CUstream handle, enum default_stream default_stream) {
  struct stream *stream;
  FORWARD_IF_ERROR(stream_enter(handle, default_stream, &stream));
  const struct executable *executable = handle_object(HANDLE_GRAPH_EXEC, exec);
  return driver_leave(executable ? graph_memory_prepare(executable->work) : CUDA_ERROR_INVALID_VALUE);
}

STREAM_API(cuGraphUpload, cuGraphUpload_ptsz, (CUgraphExec exec, CUstream stream), exec, stream)

static CUresult instantiate_with_params(CUgraphExec *exec, CUgraph graph, CUDA_GRAPH_INSTANTIATE_PARAMS *parameters,
                                        CUresult (*upload)(CUgraphExec, CUstream)) {
  if (!parameters)
    return CUDA_ERROR_INVALID_VALUE;
  CUresult result = cuGraphInstantiateWithFlags(exec, graph, parameters->flags);
  if (result == CUDA_SUCCESS && (parameters->flags & CUDA_GRAPH_INSTANTIATE_FLAG_UPLOAD)) {
    result = upload(*exec, parameters->hUploadStream);
    if (result != CUDA_SUCCESS)
      cuGraphExecDestroy(*exec);
  }
  parameters->hErrNode_out = NULL;
  parameters->result_out = result == CUDA_SUCCESS ? CUDA_GRAPH_INSTANTIATE_SUCCESS : CUDA_GRAPH_INSTANTIATE_ERROR;
  return result;
}

CUresult CUDAAPI cuGraphInstantiateWithParams(CUgraphExec *exec, CUgraph graph,
                                              CUDA_GRAPH_INSTANTIATE_PARAMS *parameters) {
  return instantiate_with_params(exec, graph, parameters, cuGraphUpload);
}

CUresult CUDAAPI cuGraphInstantiateWithParams_ptsz(CUgraphExec *exec, CUgraph graph,
                                                   CUDA_GRAPH_INSTANTIATE_PARAMS *parameters) {
  return instantiate_with_params(exec, graph, parameters, cuGraphUpload_ptsz);
}

static size_t count_events(const struct graph *graph) {
  size_t count = 0;
  for (size_t i = 0; i < graph->count; i++)
    count += graph->nodes[i]->event != NULL;
  return count;
}

static void run(struct stream *stream, const struct graph *graph) {
  uint64_t next_ns = 0;
  for (size_t i = 0; i < graph->count; i++) {
    next_ns += graph->nodes[i]->duration_ns;
    struct event *event = handle_object(HANDLE_EVENT, graph->nodes[i]->event);
    if (!event)
      continue;
    event_record_at(event, stream_queue(stream, next_ns));
    next_ns = 0;
  }
  stream_count_launch(stream, stream_queue(stream, next_ns));
}

static CUresult capture_launch(struct stream *stream, const struct graph *graph) {
  if (graph->memory_nodes) {
    stream->capture->invalid = true;
    return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
  }
  for (size_t i = 0; i < graph->count; i++) {
    CUresult result = capture_add(stream, *graph->nodes[i]);
    if (result != CUDA_SUCCESS)
      return result;
  }
  return CUDA_SUCCESS;
}

static CUresult take_memory(const struct executable *executable) {
  const struct graph *work = executable->work;
  if (!work->memory_nodes)
    return CUDA_SUCCESS;
  if (executable->frees_on_launch)
    graph_memory_free_left(work);
  else if (graph_memory_is_left(work))
    return CUDA_ERROR_INVALID_VALUE;
  CUresult result = graph_memory_prepare(work);
  if (result == CUDA_SUCCESS)
    graph_memory_run(work);
  return result;
}

static CUresult cuGraphLaunch_on(CUgraphExec exec, CUstream handle, enum default_stream default_stream) {
  struct stream *stream;
  FORWARD_IF_ERROR(launch_enter(handle, default_stream, &stream));
  uint64_t return_at_ns = launch_return_at(stream);
  const struct executable *executable = handle_object(HANDLE_GRAPH_EXEC, exec);
  if (!executable)
    return driver_leave(CUDA_ERROR_INVALID_VALUE);
  if (stream->capture)
    return driver_leave(capture_launch(stream, executable->work));
  CUresult result = count_events(executable->work) > MAX_EVENTS ? CUDA_ERROR_OUT_OF_MEMORY : take_memory(executable);
  if (result != CUDA_SUCCESS)
    return driver_leave(result);
  run(stream, executable->work);
  driver_leave(CUDA_SUCCESS);
  clock_spin_until(return_at_ns);
  return CUDA_SUCCESS;
}

STREAM_API(cuGraphLaunch, cuGraphLaunch_ptsz, (CUgraphExec exec, CUstream stream), exec, stream)
