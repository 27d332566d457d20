/* Allocations from pools. */
#ifndef SIM_POOL_MEMORY_H
#define SIM_POOL_MEMORY_H

#include "contexts.h"
#include "pools.h"

CUresult pool_allocate(struct pool *pool, struct context *context, size_t size, CUdeviceptr *address);

/* Takes all memory from the pools of a device, whose last context is gone. */
void pools_empty_device(unsigned device);

#endif
