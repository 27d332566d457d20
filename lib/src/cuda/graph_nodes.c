#include "cuda/graph_memory.h"

#include "memory/ledger.h"

#include <stdlib.h>

/* Measured on driver 580: the driver takes whole 32 MiB. Small allocations may share them, which is not relied on. */
#define STEP_BYTES (32ULL << 20)

struct allocation {
  CUdeviceptr address;
  uint64_t bytes;
  CUdevice ordinal;
  bool freed; /* by the same graph */
};

/* Growing lists of what a graph's nodes allocate, and of the addresses that they free. */
struct reading {
  struct allocation *allocations;
  size_t allocation_count, allocation_capacity;
  CUdeviceptr *freed;
  size_t freed_count, freed_capacity;
};

static bool grow(void **list, size_t count, size_t *capacity, size_t item_size) {
  if (count < *capacity)
    return true;
  size_t wanted = *capacity == 0 ? 16 : *capacity * 2;
  void *grown = realloc(*list, wanted * item_size);
  if (grown == NULL)
    return false;
  *list = grown;
  *capacity = wanted;
  return true;
}

static bool read_alloc(CUgraphNode node, struct reading *reading) {
  CUDA_MEM_ALLOC_NODE_PARAMS parameters;
  if (real.cuGraphMemAllocNodeGetParams(node, &parameters) != CUDA_SUCCESS ||
      parameters.poolProps.location.type != CU_MEM_LOCATION_TYPE_DEVICE)
    return true;
  if (!grow((void **)&reading->allocations, reading->allocation_count, &reading->allocation_capacity,
            sizeof *reading->allocations))
    return false;
  reading->allocations[reading->allocation_count++] = (struct allocation){
      .address = parameters.dptr,
      .bytes = ledger_driver_size(parameters.bytesize),
      .ordinal = parameters.poolProps.location.id,
  };
  return true;
}

static bool read_free(CUgraphNode node, struct reading *reading) {
  CUdeviceptr address;
  if (real.cuGraphMemFreeNodeGetParams(node, &address) != CUDA_SUCCESS)
    return true;
  if (!grow((void **)&reading->freed, reading->freed_count, &reading->freed_capacity, sizeof *reading->freed))
    return false;
  reading->freed[reading->freed_count++] = address;
  return true;
}

static bool read_graph(CUgraph graph, struct reading *reading, int depth);

static bool read_node(CUgraphNode node, struct reading *reading, int depth) {
  CUgraphNodeType type;
  CUgraph child;
  if (real.cuGraphNodeGetType(node, &type) != CUDA_SUCCESS)
    return true;
  switch (type) {
  case CU_GRAPH_NODE_TYPE_MEM_ALLOC:
    return read_alloc(node, reading);
  case CU_GRAPH_NODE_TYPE_MEM_FREE:
    return read_free(node, reading);
  case CU_GRAPH_NODE_TYPE_GRAPH:
    return real.cuGraphChildGraphNodeGetGraph(node, &child) != CUDA_SUCCESS || read_graph(child, reading, depth + 1);
  default:
    return true;
  }
}

#define DEEPEST 64 /* so that no graph overflows the program's stack */

static bool read_graph(CUgraph graph, struct reading *reading, int depth) {
  size_t count = 0;
  if (depth > DEEPEST || real.cuGraphGetNodes(graph, NULL, &count) != CUDA_SUCCESS || count == 0)
    return true;
  CUgraphNode *nodes = calloc(count, sizeof(CUgraphNode));
  if (nodes == NULL)
    return false;
  bool read = true;
  if (real.cuGraphGetNodes(graph, nodes, &count) == CUDA_SUCCESS)
    for (size_t i = 0; i < count && read; i++)
      read = read_node(nodes[i], reading, depth);
  free(nodes);
  return read;
}

static int compare(uint64_t a, uint64_t b) {
  return (a > b) - (a < b);
}

/* By address, the largest first. */
static int compare_allocations(const void *left, const void *right) {
  const struct allocation *a = left, *b = right;
  int by_address = compare(a->address, b->address);
  return by_address != 0 ? by_address : compare(b->bytes, a->bytes);
}

static int compare_addresses(const void *left, const void *right) {
  return compare(*(const CUdeviceptr *)left, *(const CUdeviceptr *)right);
}

/* An allocation after a free has the address of what was freed, so that many may have the same: then as many of them
 * are freed as there are frees, and what is left is the smallest. */
static void mark_freed(struct reading *reading) {
  if (reading->allocation_count == 0 || reading->freed_count == 0)
    return;
  qsort(reading->allocations, reading->allocation_count, sizeof *reading->allocations, compare_allocations);
  qsort(reading->freed, reading->freed_count, sizeof *reading->freed, compare_addresses);
  size_t next = 0;
  for (size_t i = 0; i < reading->allocation_count; i++) {
    struct allocation *allocation = &reading->allocations[i];
    while (next < reading->freed_count && reading->freed[next] < allocation->address)
      next++;
    allocation->freed = next < reading->freed_count && reading->freed[next] == allocation->address;
    if (allocation->freed)
      next++;
  }
}

static struct graph_needs *needs_on(struct graph_needs **list, CUdevice ordinal) {
  for (struct graph_needs *needs = *list; needs != NULL; needs = needs->next)
    if (needs->ordinal == ordinal)
      return needs;
  struct graph_needs *added = malloc(sizeof *added);
  if (added != NULL)
    *added = (struct graph_needs){.device = device_of_ordinal(ordinal), .ordinal = ordinal, .next = *list};
  if (added != NULL)
    *list = added;
  return added;
}

static uint64_t round_up(uint64_t bytes) {
  return bytes > UINT64_MAX - STEP_BYTES ? bytes : (bytes + STEP_BYTES - 1) / STEP_BYTES * STEP_BYTES;
}

static uint64_t add_up(uint64_t a, uint64_t b) {
  uint64_t sum;
  return __builtin_add_overflow(a, b, &sum) ? UINT64_MAX : sum;
}

/* The least is first what is not freed, then raised to the largest allocation. */
static bool sum_up(const struct reading *reading, struct graph_needs **list) {
  for (size_t i = 0; i < reading->allocation_count; i++) {
    const struct allocation *allocation = &reading->allocations[i];
    struct graph_needs *needs = needs_on(list, allocation->ordinal);
    if (needs == NULL)
      return false;
    needs->most_bytes = add_up(needs->most_bytes, round_up(allocation->bytes));
    if (!allocation->freed)
      needs->least_bytes = add_up(needs->least_bytes, allocation->bytes);
  }
  for (size_t i = 0; i < reading->allocation_count; i++) {
    struct graph_needs *needs = needs_on(list, reading->allocations[i].ordinal);
    if (reading->allocations[i].bytes > needs->least_bytes)
      needs->least_bytes = reading->allocations[i].bytes;
  }
  return true;
}

bool graph_nodes_read(CUgraph graph, struct graph_needs **needs) {
  struct reading reading = {0};
  *needs = NULL;
  bool read = read_graph(graph, &reading, 0);
  if (read) {
    mark_freed(&reading);
    read = sum_up(&reading, needs);
  }
  free(reading.allocations);
  free(reading.freed);
  if (!read) {
    graph_needs_free(*needs);
    *needs = NULL;
  }
  return read;
}

void graph_needs_free(struct graph_needs *needs) {
  while (needs != NULL) {
    struct graph_needs *next = needs->next;
    free(needs);
    needs = next;
  }
}
