#include "graph_memory.h"

#include "device_memory.h"
#include "state.h"
#include "visible.h"

static struct graph_memory {
  uint64_t reserved_bytes, reserved_high_bytes;
  uint64_t live_bytes, live_high_bytes;
} of_device[SIM_MAX_DEVICES];

#define STEP_BYTES (32 * MIB)

static uint64_t size_of(const struct region *region) {
  return round_up(region->size, DEVICE_PAGE);
}

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

void graph_memory_hold(struct region *region) {
  region->holders++;
}

void graph_memory_let_go(struct region *region) {
  if (--region->holders == 0 && !region->live)
    region_delete(region);
}

static void set_live(struct region *region, bool live) {
  struct graph_memory *memory = &of_device[region->device];
  if (region->live == live)
    return;
  region->live = live;
  memory->live_bytes += live ? size_of(region) : -size_of(region);
  memory->live_high_bytes = max_u64(memory->live_high_bytes, memory->live_bytes);
}

void graph_memory_free(struct region *region) {
  set_live(region, false);
  if (region->holders == 0)
    region_delete(region);
}

/* Per device: the nodes of a graph may allocate on several. */
static uint64_t peak_bytes(const struct graph *graph, unsigned device) {
  uint64_t now = of_device[device].live_bytes, peak = now;
  for (size_t i = 0; i < graph->count; i++) {
    const struct graph_node *node = graph->nodes[i];
    if (!node->memory || node->memory->device != device)
      continue;
    now += node->type == CU_GRAPH_NODE_TYPE_MEM_ALLOC ? size_of(node->memory) : -size_of(node->memory);
    peak = max_u64(peak, now);
  }
  return round_up(peak, STEP_BYTES);
}

CUresult graph_memory_prepare(const struct graph *graph) {
  for (unsigned device = 0; graph->memory_nodes && device < sim_config.device_count; device++) {
    struct graph_memory *memory = &of_device[device];
    uint64_t peak = peak_bytes(graph, device);
    if (peak <= memory->reserved_bytes)
      continue;
    if (!memory_take(device, peak - memory->reserved_bytes))
      return CUDA_ERROR_OUT_OF_MEMORY;
    memory->reserved_bytes = peak;
    memory->reserved_high_bytes = max_u64(memory->reserved_high_bytes, peak);
  }
  return CUDA_SUCCESS;
}

void graph_memory_run(const struct graph *graph) {
  for (size_t i = 0; i < graph->count; i++)
    if (graph->nodes[i]->memory)
      set_live(graph->nodes[i]->memory, graph->nodes[i]->type == CU_GRAPH_NODE_TYPE_MEM_ALLOC);
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
      set_live(graph->nodes[i]->memory, false);
}

static void trim(unsigned device) {
  struct graph_memory *memory = &of_device[device];
  uint64_t kept_bytes = round_up(memory->live_bytes, STEP_BYTES);
  state_release(device, memory->reserved_bytes - kept_bytes);
  memory->reserved_bytes = kept_bytes;
}

static void free_if_of(struct region *region, void *device) {
  if (region->kind == REGION_GRAPH && region->live && region->device == *(unsigned *)device)
    graph_memory_free(region);
}

void graph_memory_empty_device(unsigned device) {
  region_visit(free_if_of, &device);
  trim(device);
}

static CUresult enter_device(CUdevice ordinal, unsigned *device) {
  CUresult result = driver_enter();
  if (result != CUDA_SUCCESS)
    return result;
  return visible_device(ordinal, device) ? CUDA_SUCCESS : driver_leave(CUDA_ERROR_INVALID_DEVICE);
}

CUresult CUDAAPI cuDeviceGraphMemTrim(CUdevice ordinal) {
  unsigned device;
  CUresult result = enter_device(ordinal, &device);
  if (result != CUDA_SUCCESS)
    return result;
  trim(device);
  return driver_leave(CUDA_SUCCESS);
}

static uint64_t *attribute_of(struct graph_memory *memory, CUgraphMem_attribute attribute) {
  switch (attribute) {
  case CU_GRAPH_MEM_ATTR_USED_MEM_CURRENT:
    return &memory->live_bytes;
  case CU_GRAPH_MEM_ATTR_USED_MEM_HIGH:
    return &memory->live_high_bytes;
  case CU_GRAPH_MEM_ATTR_RESERVED_MEM_CURRENT:
    return &memory->reserved_bytes;
  case CU_GRAPH_MEM_ATTR_RESERVED_MEM_HIGH:
    return &memory->reserved_high_bytes;
  default:
    return NULL;
  }
}

CUresult CUDAAPI cuDeviceGetGraphMemAttribute(CUdevice ordinal, CUgraphMem_attribute attribute, void *value) {
  unsigned device;
  CUresult result = enter_device(ordinal, &device);
  if (result != CUDA_SUCCESS)
    return result;
  const uint64_t *bytes = attribute_of(&of_device[device], attribute);
  if (!value || !bytes)
    return driver_leave(CUDA_ERROR_INVALID_VALUE);
  *(uint64_t *)value = *bytes;
  return driver_leave(CUDA_SUCCESS);
}

/* A high-water mark can only be reset, by setting it to 0. */
CUresult CUDAAPI cuDeviceSetGraphMemAttribute(CUdevice ordinal, CUgraphMem_attribute attribute, void *value) {
  unsigned device;
  CUresult result = enter_device(ordinal, &device);
  if (result != CUDA_SUCCESS)
    return result;
  bool high = attribute == CU_GRAPH_MEM_ATTR_USED_MEM_HIGH || attribute == CU_GRAPH_MEM_ATTR_RESERVED_MEM_HIGH;
  if (!value || !high || *(uint64_t *)value != 0)
    return driver_leave(CUDA_ERROR_INVALID_VALUE);
  uint64_t *bytes = attribute_of(&of_device[device], attribute);
  *bytes =
      attribute == CU_GRAPH_MEM_ATTR_USED_MEM_HIGH ? of_device[device].live_bytes : of_device[device].reserved_bytes;
  return driver_leave(CUDA_SUCCESS);
}
