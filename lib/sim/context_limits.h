/* The limits of cuCtxSetLimit. */
#pragma once

#include "contexts.h"

#define DEFAULT_STACK_BYTES 1024

/* Memory that the stacks of kernels take beyond the default. */
uint64_t context_stack_bytes(const struct context *context);
