#include "graph_runs.h"

#include "config.h"
#include "graph_memory.h"

static bool allocates(const struct graph *graph, const struct region *region) {
  for (size_t i = 0; i < graph->count; i++)
    if (graph->nodes[i]->type == CU_GRAPH_NODE_TYPE_MEM_ALLOC && graph->nodes[i]->memory == region)
      return true;
  return false;
}

struct region *graph_memory_for(const struct graph *graph, unsigned device, size_t size) {
  const struct graph_node *last = graph->count ? graph->nodes[graph->count - 1] : NULL;
  if (last && last->type == CU_GRAPH_NODE_TYPE_MEM_FREE && last->memory->device == device &&
      last->memory->size == size && allocates(graph, last->memory))
    return last->memory;
  struct region *region = region_new(REGION_GRAPH, size, KEEP_IF_SMALL, false);
  if (region)
    region->device = device;
  return region;
}

/* Per device: the nodes of a graph may allocate on several. */
static uint64_t peak_bytes(const struct graph *graph, unsigned device) {
  uint64_t now = graph_memory_live_bytes(device), peak = now;
  for (size_t i = 0; i < graph->count; i++) {
    const struct graph_node *node = graph->nodes[i];
    if (!node->memory || node->memory->device != device)
      continue;
    now +=
        node->type == CU_GRAPH_NODE_TYPE_MEM_ALLOC ? graph_memory_size(node->memory) : -graph_memory_size(node->memory);
    peak = max_u64(peak, now);
  }
  return peak;
}

CUresult graph_memory_prepare(const struct graph *graph) {
  for (unsigned device = 0; graph->memory_nodes && device < sim_config.device_count; device++)
    if (!graph_memory_grow(device, peak_bytes(graph, device)))
      return CUDA_ERROR_OUT_OF_MEMORY;
  return CUDA_SUCCESS;
}

void graph_memory_run(const struct graph *graph) {
  for (size_t i = 0; i < graph->count; i++)
    if (graph->nodes[i]->memory)
      graph_memory_set_live(graph->nodes[i]->memory, graph->nodes[i]->type == CU_GRAPH_NODE_TYPE_MEM_ALLOC);
}

bool graph_memory_is_left(const struct graph *graph) {
  for (size_t i = 0; i < graph->count; i++)
    if (graph->nodes[i]->type == CU_GRAPH_NODE_TYPE_MEM_ALLOC && graph->nodes[i]->memory->live)
      return true;
  return false;
}

void graph_memory_free_left(const struct graph *graph) {
  for (size_t i = 0; i < graph->count; i++)
    if (graph->nodes[i]->type == CU_GRAPH_NODE_TYPE_MEM_ALLOC)
      graph_memory_set_live(graph->nodes[i]->memory, false);
}
