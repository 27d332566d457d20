/* Allocations from pools. */
#pragma once

#include "contexts.h"
#include "pools.h"

CUresult pool_allocate(struct pool *pool, struct context *context, size_t size, CUdeviceptr *address);

/* Takes all memory from the pools of a device, whose last context is gone. */
void pools_empty_device(unsigned device);
