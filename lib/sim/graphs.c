#include "graphs.h"

#include <stdlib.h>

#include "graph_memory.h"

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
  for (size_t i = 0; i < graph->count; i++) {
    if (graph->nodes[i]->memory)
      graph_memory_let_go(graph->nodes[i]->memory);
    handle_delete(graph->nodes[i]->handle);
    free(graph->nodes[i]);
  }
  handle_delete(graph->handle);
  free(graph->nodes);
  free(graph);
}

static bool has_room(struct graph *graph) {
  if (graph->count < graph->capacity)
    return true;
  size_t capacity = graph->capacity ? graph->capacity * 2 : 16;
  struct graph_node **grown = realloc(graph->nodes, capacity * sizeof *grown);
  if (!grown)
    return false;
  graph->nodes = grown;
  graph->capacity = capacity;
  return true;
}

const struct graph_node *graph_add(struct graph *graph, struct graph_node node) {
  struct graph_node *added = has_room(graph) ? malloc(sizeof *added) : NULL;
  if (added)
    node.handle = handle_new(HANDLE_GRAPH_NODE, added);
  if (!added || !node.handle) {
    free(added);
    return NULL;
  }
  *added = node;
  graph->nodes[graph->count++] = added;
  if (node.memory) {
    graph->memory_nodes++;
    graph_memory_hold(node.memory);
  }
  return added;
}

bool graph_append(struct graph *graph, const struct graph *other) {
  for (size_t i = 0; i < other->count; i++)
    if (!graph_add(graph, *other->nodes[i]))
      return false;
  return true;
}

static CUresult enter_graph(CUgraph handle, struct graph **graph) {
  FORWARD_IF_ERROR(driver_enter());
  *graph = handle_object(HANDLE_GRAPH, handle);
  return *graph ? CUDA_SUCCESS : driver_leave(CUDA_ERROR_INVALID_VALUE);
}

CUresult CUDAAPI cuGraphCreate(CUgraph *handle, unsigned int flags) {
  FORWARD_IF_ERROR(driver_enter());
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
  FORWARD_IF_ERROR(enter_graph(handle, &graph));
  graph_delete(graph);
  return driver_leave(CUDA_SUCCESS);
}

CUresult CUDAAPI cuGraphGetNodes(CUgraph handle, CUgraphNode *nodes, size_t *count) {
  struct graph *graph;
  FORWARD_IF_ERROR(enter_graph(handle, &graph));
  if (!count)
    return driver_leave(CUDA_ERROR_INVALID_VALUE);
  if (!nodes) {
    *count = graph->count;
    return driver_leave(CUDA_SUCCESS);
  }
  for (size_t i = 0; i < *count; i++)
    nodes[i] = i < graph->count ? graph->nodes[i]->handle : NULL;
  *count = min_u64(*count, graph->count);
  return driver_leave(CUDA_SUCCESS);
}

CUresult CUDAAPI cuGraphNodeGetType(CUgraphNode node, CUgraphNodeType *type) {
  FORWARD_IF_ERROR(driver_enter());
  const struct graph_node *found = handle_object(HANDLE_GRAPH_NODE, node);
  if (!found || !type)
    return driver_leave(CUDA_ERROR_INVALID_VALUE);
  *type = found->type;
  return driver_leave(CUDA_SUCCESS);
}

static CUresult copy_graph(const struct graph *graph, CUgraph *handle) {
  if (graph->memory_nodes)
    return CUDA_ERROR_NOT_SUPPORTED; /* their addresses are theirs alone */
  struct graph *copy = graph_new();
  if (!copy)
    return CUDA_ERROR_OUT_OF_MEMORY;
  if (!graph_append(copy, graph)) {
    graph_delete(copy);
    return CUDA_ERROR_OUT_OF_MEMORY;
  }
  *handle = copy->handle;
  return CUDA_SUCCESS;
}

CUresult CUDAAPI cuGraphClone(CUgraph *clone, CUgraph original) {
  struct graph *graph;
  FORWARD_IF_ERROR(enter_graph(original, &graph));
  return driver_leave(clone ? copy_graph(graph, clone) : CUDA_ERROR_INVALID_VALUE);
}

/* The child's work becomes a part of the graph: there is no node that stands for it, so none is given. */
CUresult CUDAAPI cuGraphAddChildGraphNode(CUgraphNode *node, CUgraph handle, const CUgraphNode *dependencies,
                                          size_t count, CUgraph child_handle) {
  struct graph *graph;
  (void)dependencies;
  (void)count;
  FORWARD_IF_ERROR(enter_graph(handle, &graph));
  const struct graph *child = handle_object(HANDLE_GRAPH, child_handle);
  if (!node || !child || child == graph)
    return driver_leave(CUDA_ERROR_INVALID_VALUE);
  if (child->memory_nodes)
    return driver_leave(CUDA_ERROR_NOT_SUPPORTED);
  if (!graph_append(graph, child))
    return driver_leave(CUDA_ERROR_OUT_OF_MEMORY);
  *node = NULL;
  return driver_leave(CUDA_SUCCESS);
}

CUresult CUDAAPI cuGraphChildGraphNodeGetGraph(CUgraphNode node, CUgraph *child) {
  FORWARD_IF_ERROR(driver_enter());
  (void)node;
  (void)child;
  return driver_leave(CUDA_ERROR_INVALID_VALUE); /* there is no such node */
}
