/* Graphs: a list of work in the order of its capture. Work on one device runs one after the other, so that a graph
 * needs no edges here: the order of capture is one that its edges allow. */
#pragma once

#include "driver.h"

struct region;

struct graph_node {
  CUgraphNodeType type;
  uint64_t duration_ns;
  CUevent event;         /* for CU_GRAPH_NODE_TYPE_EVENT_RECORD */
  struct region *memory; /* for nodes that allocate or free; the node holds it */
  CUgraphNode handle;
};

struct graph {
  CUgraph handle;
  struct graph_node **nodes; /* each with its handle, which stays as the list grows */
  size_t count, capacity;
  unsigned memory_nodes;
  unsigned executables; /* made from this graph, and not destroyed yet */
};

struct graph *graph_new(void);
void graph_delete(struct graph *graph);
bool graph_append(struct graph *graph, const struct graph *other);

/* Adds a copy of the node; NULL without memory. */
const struct graph_node *graph_add(struct graph *graph, struct graph_node node);
