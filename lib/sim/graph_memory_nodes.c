/* Nodes that allocate and free, added to a graph by hand. */
#include "graph_memory.h"
#include "graph_runs.h"
#include "visible.h"

static CUresult enter_graph(CUgraph handle, const void *argument, struct graph **graph) {
  FORWARD_IF_ERROR(driver_enter());
  *graph = handle_object(HANDLE_GRAPH, handle);
  return *graph && argument ? CUDA_SUCCESS : driver_leave(CUDA_ERROR_INVALID_VALUE);
}

/* Takes what is made: the region goes with the node, or here. */
static CUresult add(struct graph *graph, CUgraphNodeType type, struct region *memory, CUgraphNode *handle) {
  graph_memory_hold(memory);
  const struct graph_node *node = graph_add(graph, (struct graph_node){.type = type, .memory = memory});
  graph_memory_let_go(memory);
  if (!node)
    return CUDA_ERROR_OUT_OF_MEMORY;
  *handle = node->handle;
  return CUDA_SUCCESS;
}

static CUresult add_alloc(struct graph *graph, CUgraphNode *handle, const CUmemPoolProps *properties, size_t size,
                          CUdeviceptr *address) {
  unsigned device;
  if (properties->location.type != CU_MEM_LOCATION_TYPE_DEVICE || size == 0)
    return CUDA_ERROR_INVALID_VALUE;
  if (!visible_device(properties->location.id, &device))
    return CUDA_ERROR_INVALID_DEVICE;
  struct region *memory = graph_memory_for(graph, device, size);
  if (!memory)
    return CUDA_ERROR_OUT_OF_MEMORY;
  *address = memory->base;
  return add(graph, CU_GRAPH_NODE_TYPE_MEM_ALLOC, memory, handle);
}

static CUresult add_free(struct graph *graph, CUgraphNode *handle, CUdeviceptr address) {
  struct region *memory = region_find(address);
  if (!memory || memory->kind != REGION_GRAPH || memory->base != address)
    return CUDA_ERROR_INVALID_VALUE;
  return add(graph, CU_GRAPH_NODE_TYPE_MEM_FREE, memory, handle);
}

CUresult CUDAAPI cuGraphAddMemAllocNode(CUgraphNode *node, CUgraph handle, const CUgraphNode *dependencies,
                                        size_t count, CUDA_MEM_ALLOC_NODE_PARAMS *parameters) {
  struct graph *graph;
  (void)dependencies;
  (void)count;
  FORWARD_IF_ERROR(enter_graph(handle, node, &graph));
  if (!parameters)
    return driver_leave(CUDA_ERROR_INVALID_VALUE);
  return driver_leave(add_alloc(graph, node, &parameters->poolProps, parameters->bytesize, &parameters->dptr));
}

CUresult CUDAAPI cuGraphAddMemFreeNode(CUgraphNode *node, CUgraph handle, const CUgraphNode *dependencies, size_t count,
                                       CUdeviceptr address) {
  struct graph *graph;
  (void)dependencies;
  (void)count;
  CUresult result = enter_graph(handle, node, &graph);
  return result == CUDA_SUCCESS ? driver_leave(add_free(graph, node, address)) : result;
}

/* Two of the many kinds. */
CUresult CUDAAPI cuGraphAddNode(CUgraphNode *node, CUgraph handle, const CUgraphNode *dependencies, size_t count,
                                CUgraphNodeParams *parameters) {
  struct graph *graph;
  (void)dependencies;
  (void)count;
  FORWARD_IF_ERROR(enter_graph(handle, node, &graph));
  if (!parameters)
    return driver_leave(CUDA_ERROR_INVALID_VALUE);
  switch (parameters->type) {
  case CU_GRAPH_NODE_TYPE_MEM_ALLOC:
    return driver_leave(
        add_alloc(graph, node, &parameters->alloc.poolProps, parameters->alloc.bytesize, &parameters->alloc.dptr));
  case CU_GRAPH_NODE_TYPE_MEM_FREE:
    return driver_leave(add_free(graph, node, parameters->free.dptr));
  default:
    return driver_leave(CUDA_ERROR_NOT_SUPPORTED);
  }
}

CUresult CUDAAPI cuGraphAddNode_v2(CUgraphNode *node, CUgraph handle, const CUgraphNode *dependencies,
                                   const CUgraphEdgeData *edges, size_t count, CUgraphNodeParams *parameters) {
  (void)edges;
  return cuGraphAddNode(node, handle, dependencies, count, parameters);
}

static CUresult enter_node(CUgraphNode handle, CUgraphNodeType type, const void *output,
                           const struct graph_node **node) {
  FORWARD_IF_ERROR(driver_enter());
  *node = handle_object(HANDLE_GRAPH_NODE, handle);
  return output && *node && (*node)->type == type ? CUDA_SUCCESS : driver_leave(CUDA_ERROR_INVALID_VALUE);
}

CUresult CUDAAPI cuGraphMemAllocNodeGetParams(CUgraphNode handle, CUDA_MEM_ALLOC_NODE_PARAMS *parameters) {
  const struct graph_node *node;
  FORWARD_IF_ERROR(enter_node(handle, CU_GRAPH_NODE_TYPE_MEM_ALLOC, parameters, &node));
  *parameters = (CUDA_MEM_ALLOC_NODE_PARAMS){.bytesize = node->memory->size, .dptr = node->memory->base};
  parameters->poolProps.allocType = CU_MEM_ALLOCATION_TYPE_PINNED;
  parameters->poolProps.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
  parameters->poolProps.location.id = visible_ordinal(node->memory->device);
  return driver_leave(CUDA_SUCCESS);
}

CUresult CUDAAPI cuGraphMemFreeNodeGetParams(CUgraphNode handle, CUdeviceptr *address) {
  const struct graph_node *node;
  FORWARD_IF_ERROR(enter_node(handle, CU_GRAPH_NODE_TYPE_MEM_FREE, address, &node));
  *address = node->memory->base;
  return driver_leave(CUDA_SUCCESS);
}
