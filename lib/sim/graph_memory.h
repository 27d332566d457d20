/*
 * Memory that nodes of graphs allocate. It has its address from the moment that the node is made, and no memory behind
 * it until the graph is uploaded or launched: then the device's graph memory grows to what the graph needs at its peak
 * together with what earlier launches left allocated, in steps of 32 MiB. It stays grown until it is trimmed.
 */
#pragma once

#include "regions.h"

/* A region goes when no node holds it and it is not live. */
void graph_memory_hold(struct region *region);
void graph_memory_let_go(struct region *region);

/* Whether there is memory behind it. */
void graph_memory_set_live(struct region *region, bool live);

/* Returns how much of its device's graph memory a region takes, and how much graph memory of a device is live. */
uint64_t graph_memory_size(const struct region *region);
uint64_t graph_memory_live_bytes(unsigned device);

/* Grows it to so much at least; false when the device has not that much. */
bool graph_memory_grow(unsigned device, uint64_t peak_bytes);

/* Freed by the program. */
void graph_memory_free(struct region *region);

/* Frees all graph memory of a device, whose last context is gone. */
void graph_memory_empty_device(unsigned device);
