#include "graphs.h"

#include <stdlib.h>

struct graph *graph_new(void) {
  struct graph *graph = calloc(1, sizeof *graph);
  if (!graph)
    return NULL;
  graph->handle = handle_new(HANDLE_GRAPH, graph);
  if (!graph->handle) {
    free(graph);
    return NULL;
  }
  return graph;
}

void graph_delete(struct graph *graph) {
  for (size_t i = 0; i < graph->count; i++)
    handle_delete(graph->nodes[i].handle);
  handle_delete(graph->handle);
  free(graph->nodes);
  free(graph);
}

/* A node's handle stands for its type: that is all that can be asked of a node. */
bool graph_add(struct graph *graph, struct graph_node node) {
  if (graph->count == graph->capacity) {
    size_t capacity = graph->capacity ? graph->capacity * 2 : 16;
    struct graph_node *grown = realloc(graph->nodes, capacity * sizeof *grown);
    if (!grown)
      return false;
    graph->nodes = grown;
    graph->capacity = capacity;
  }
  node.handle = handle_new(HANDLE_GRAPH_NODE, (void *)((uintptr_t)node.type + 1));
  if (!node.handle)
    return false;
  graph->nodes[graph->count++] = node;
  return true;
}

bool graph_append(struct graph *graph, const struct graph *other) {
  for (size_t i = 0; i < other->count; i++)
    if (!graph_add(graph, other->nodes[i]))
      return false;
  return true;
}

static CUresult enter_graph(CUgraph handle, struct graph **graph) {
  CUresult result = driver_enter();
  if (result != CUDA_SUCCESS)
    return result;
  *graph = handle_object(HANDLE_GRAPH, handle);
  return *graph ? CUDA_SUCCESS : driver_leave(CUDA_ERROR_INVALID_VALUE);
}

CUresult CUDAAPI cuGraphCreate(CUgraph *handle, unsigned int flags) {
  CUresult result = driver_enter();
  if (result != CUDA_SUCCESS)
    return result;
  if (!handle || flags != 0)
    return driver_leave(CUDA_ERROR_INVALID_VALUE);
  struct graph *graph = graph_new();
  if (!graph)
    return driver_leave(CUDA_ERROR_OUT_OF_MEMORY);
  *handle = graph->handle;
  return driver_leave(CUDA_SUCCESS);
}

CUresult CUDAAPI cuGraphDestroy(CUgraph handle) {
  struct graph *graph;
  CUresult result = enter_graph(handle, &graph);
  if (result != CUDA_SUCCESS)
    return result;
  graph_delete(graph);
  return driver_leave(CUDA_SUCCESS);
}

CUresult CUDAAPI cuGraphGetNodes(CUgraph handle, CUgraphNode *nodes, size_t *count) {
  struct graph *graph;
  CUresult result = enter_graph(handle, &graph);
  if (result != CUDA_SUCCESS)
    return result;
  if (!count)
    return driver_leave(CUDA_ERROR_INVALID_VALUE);
  if (!nodes) {
    *count = graph->count;
    return driver_leave(CUDA_SUCCESS);
  }
  for (size_t i = 0; i < *count; i++)
    nodes[i] = i < graph->count ? graph->nodes[i].handle : NULL;
  *count = min_u64(*count, graph->count);
  return driver_leave(CUDA_SUCCESS);
}

CUresult CUDAAPI cuGraphNodeGetType(CUgraphNode node, CUgraphNodeType *type) {
  CUresult result = driver_enter();
  if (result != CUDA_SUCCESS)
    return result;
  uintptr_t stored = (uintptr_t)handle_object(HANDLE_GRAPH_NODE, node);
  if (!stored || !type)
    return driver_leave(CUDA_ERROR_INVALID_VALUE);
  *type = (CUgraphNodeType)(stored - 1);
  return driver_leave(CUDA_SUCCESS);
}
