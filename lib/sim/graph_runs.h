/* The memory of a graph's nodes, as the graph runs. */
#pragma once

#include "graphs.h"

/* A region for the next node of a graph that allocates; NULL when there is none. It is the one that the node before has
 * freed, if the graph has allocated that in the same size: as on a card, allocations that follow each other have the
 * same address. */
struct region *graph_memory_for(const struct graph *graph, unsigned device, size_t size);

/* A graph's peak need, if it is the only one. */
CUresult graph_memory_prepare(const struct graph *graph);

/* The graph has run: what it allocates and does not free is live, what it frees is not. */
void graph_memory_run(const struct graph *graph);

/* A graph that runs again gives back what it left the last time, or else may not run. */
void graph_memory_free_left(const struct graph *graph);
bool graph_memory_is_left(const struct graph *graph);
