/* Stacks take device memory for every thread that can run at a time, at once. Heaps are kept as figures: no kernel runs
 * here that would use them. */
#include "context_limits.h"

#include "device_memory.h"
#include "pools.h"
#include "state.h"

#define THREADS_PER_MULTIPROCESSOR 2048

static uint64_t stack_bytes(const struct context *context, uint64_t per_thread) {
  uint64_t more = per_thread > DEFAULT_STACK_BYTES ? per_thread - DEFAULT_STACK_BYTES : 0;
  return more * THREADS_PER_MULTIPROCESSOR * sim_config.devices[context->device].multiprocessors;
}

uint64_t context_stack_bytes(const struct context *context) {
  return stack_bytes(context, context->limits[CU_LIMIT_STACK_SIZE]);
}

static CUresult enter(CUlimit limit, struct context **context) {
  FORWARD_IF_ERROR(context_enter(context));
  return (unsigned)limit < CONTEXT_LIMITS ? CUDA_SUCCESS : driver_leave(CUDA_ERROR_UNSUPPORTED_LIMIT);
}

static CUresult set_stack(struct context *context, uint64_t per_thread) {
  uint64_t before = context_stack_bytes(context), after = stack_bytes(context, per_thread);
  if (per_thread > 512 * KIB)
    return CUDA_ERROR_INVALID_VALUE;
  if (after > before && !pools_take_memory(context->device, after - before))
    return CUDA_ERROR_OUT_OF_MEMORY;
  if (after < before)
    state_release(context->device, before - after);
  return CUDA_SUCCESS;
}

CUresult CUDAAPI cuCtxSetLimit(CUlimit limit, size_t value) {
  struct context *context;
  CUresult result = enter(limit, &context);
  if (result != CUDA_SUCCESS)
    return result;
  if (limit == CU_LIMIT_STACK_SIZE)
    result = set_stack(context, value);
  if (result == CUDA_SUCCESS)
    context->limits[limit] = value;
  return driver_leave(result);
}

CUresult CUDAAPI cuCtxGetLimit(size_t *value, CUlimit limit) {
  struct context *context;
  FORWARD_IF_ERROR(enter(limit, &context));
  if (!value)
    return driver_leave(CUDA_ERROR_INVALID_VALUE);
  *value = context->limits[limit];
  return driver_leave(CUDA_SUCCESS);
}
