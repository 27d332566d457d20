/* Graphs: a list of work in the order of its capture. Work on one device runs one after the other, so that a graph
 * needs no edges here: the order of capture is one that its edges allow. */
#ifndef SIM_GRAPHS_H
#define SIM_GRAPHS_H

#include "driver.h"

struct graph_node {
  CUgraphNodeType type;
  uint64_t duration_ns;
  CUevent event; /* of CU_GRAPH_NODE_TYPE_EVENT_RECORD */
  CUgraphNode handle;
};

struct graph {
  CUgraph handle;
  struct graph_node *nodes;
  size_t count, capacity;
};

struct graph *graph_new(void);
void graph_delete(struct graph *graph);
bool graph_add(struct graph *graph, struct graph_node node);
bool graph_append(struct graph *graph, const struct graph *other);

#endif
