/* What the nodes of a graph allocate. */
#ifndef VGPU_GRAPH_NODES_H
#define VGPU_GRAPH_NODES_H

#include "device/devices.h"

/* On one device; a list with one entry for each. */
struct graph_needs {
  struct device *device;
  CUdevice ordinal;
  uint64_t most_bytes;  /* all allocations: more the graph cannot need, in whatever order its nodes run */
  uint64_t least_bytes; /* those that it does not free, or the largest: less it cannot need */
  struct graph_needs *next;
};

/* Reads a graph, child graphs included. False without host memory for it. No needs: *needs is NULL. */
bool graph_nodes_read(CUgraph graph, struct graph_needs **needs);

void graph_needs_free(struct graph_needs *needs);

#endif
