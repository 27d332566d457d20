/*
 * Memory that nodes of graphs allocate. It has its address from the moment that the node is made, and no memory behind
 * it until the graph is uploaded or launched: then the device's graph memory grows to what the graph needs at its peak
 * together with what earlier launches left allocated, in steps of 32 MiB. It stays grown until it is trimmed.
 */
#ifndef SIM_GRAPH_MEMORY_H
#define SIM_GRAPH_MEMORY_H

#include "graphs.h"
#include "regions.h"

/* A region for the next node of a graph that allocates; NULL when there is none. It is the one that the node before has
 * freed, if the graph has allocated that in the same size: as on a card, allocations that follow each other have the
 * same address. It goes when nobody holds it and it is not live. */
struct region *graph_memory_for(const struct graph *graph, unsigned device, size_t size);
void graph_memory_hold(struct region *region);
void graph_memory_let_go(struct region *region);

/* A graph's peak need, if it is the only one. */
CUresult graph_memory_prepare(const struct graph *graph);

/* The graph has run: what it allocates and does not free is live, what it frees is not. */
void graph_memory_run(const struct graph *graph);

/* A graph that runs again gives back what it left the last time, or else may not run. */
void graph_memory_free_left(const struct graph *graph);
bool graph_memory_is_left(const struct graph *graph);

/* Freed by the program. */
void graph_memory_free(struct region *region);

/* With the last context of a device. */
void graph_memory_empty_device(unsigned device);

#endif
