/* Memory that a graph's nodes allocate: the driver takes it when the graph is uploaded or launched. */
#pragma once

#include "cuda/memory.h"
#include "cuda/memory_pools.h"
#include "device/devices.h"

struct graph_needs; /* a graph's possible needs, on each device */

/* A launch or an upload. */
struct graph_run {
  const struct graph_needs *needs; /* NULL: nothing to count */
  bool reserved;                   /* for as much as they may be */
};

/* Before the driver's call: CUDA_ERROR_OUT_OF_MEMORY when the graph would pass the limit. After it, end. */
CUresult graph_memory_begin(struct graph_run *run, CUgraphExec executable, CUstream stream);
CUresult graph_memory_end(const struct graph_run *run, CUresult result);

/* Counts what the driver keeps for graphs of this device, or has it give back first what no graph uses. */
void graph_memory_settle(struct device *device, enum pools what);

/* The allocations of a graph's nodes. */

/* On one device; a list with one entry for each. */
struct graph_needs {
  struct device *device;
  CUdevice ordinal;
  uint64_t most_bytes;  /* all allocations: more the graph cannot need, in whatever order its nodes run */
  uint64_t least_bytes; /* allocations that it does not free, or the largest: it cannot need less */
  struct graph_needs *next;
};

/* Reads a graph, child graphs included. False without host memory for it. No needs: *needs is NULL. */
bool graph_nodes_read(CUgraph graph, struct graph_needs **needs);

void graph_needs_free(struct graph_needs *needs);
