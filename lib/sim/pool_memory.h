/* Allocations from pools. */
#ifndef SIM_POOL_MEMORY_H
#define SIM_POOL_MEMORY_H

#include "contexts.h"
#include "pools.h"

CUresult pool_allocate(struct pool *pool, struct context *context, size_t size, CUdeviceptr *address);

/* With the last context of a device its pools lose all their memory. */
void pools_empty_device(unsigned device);

#endif
