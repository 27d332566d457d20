#include "contexts.h"

#include <stdlib.h>
#include <string.h>

#include "arrays.h"
#include "capture.h"
#include "control.h"
#include "device_memory.h"
#include "events.h"
#include "graph_memory.h"
#include "modules.h"
#include "pools.h"
#include "spins.h"
#include "state.h"
#include "streams.h"
#include "visible.h"

#define STACK_DEPTH 64
#define ALL_FLAGS (CU_CTX_SCHED_MASK | CU_CTX_MAP_HOST | CU_CTX_LMEM_RESIZE_TO_MAX | CU_CTX_SYNC_MEMOPS)

static _Thread_local CUcontext stack[STACK_DEPTH];
static _Thread_local unsigned depth;

CUresult context_find(CUcontext handle, struct context **context) {
  if (!handle)
    return context_current(context);
  *context = handle_object(HANDLE_CONTEXT, handle);
  if (!*context)
    return CUDA_ERROR_INVALID_CONTEXT;
  return (*context)->active ? CUDA_SUCCESS : CUDA_ERROR_CONTEXT_IS_DESTROYED;
}

CUresult context_current(struct context **context) {
  if (depth == 0 || !stack[depth - 1])
    return CUDA_ERROR_INVALID_CONTEXT;
  CUresult result = context_find(stack[depth - 1], context);
  return result == CUDA_ERROR_INVALID_CONTEXT ? CUDA_ERROR_CONTEXT_IS_DESTROYED : result;
}

struct context *context_new(unsigned device, unsigned flags) {
  static uint64_t last_id;
  struct context *context = calloc(1, sizeof *context);
  if (!context)
    return NULL;
  context->handle = handle_new(HANDLE_CONTEXT, context);
  if (!context->handle) {
    free(context);
    return NULL;
  }
  context->device = device;
  context->flags = flags;
  context->id = ++last_id;
  return context;
}

void context_delete(struct context *context) {
  handle_delete(context->handle);
  free(context);
}

CUresult context_activate(struct context *context) {
  uint64_t overhead_bytes = sim_config.devices[context->device].context_overhead_bytes;
  context->legacy = stream_new(context, CU_STREAM_DEFAULT, 0);
  if (!context->legacy || !memory_take(context->device, overhead_bytes)) {
    if (context->legacy)
      stream_delete(context->legacy);
    context->legacy = NULL;
    return CUDA_ERROR_OUT_OF_MEMORY;
  }
  if (!control_make_channels(context->device, &context->group)) {
    state_release(context->device, overhead_bytes);
    stream_delete(context->legacy);
    context->legacy = NULL;
    return CUDA_ERROR_OUT_OF_MEMORY;
  }
  context->legacy->legacy = true;
  context->active = true;
  memcpy(context->limits, (const uint64_t[]){DEFAULT_STACK_BYTES, MIB, 8 * MIB}, sizeof context->limits);
  return CUDA_SUCCESS;
}

struct siblings {
  unsigned device;
  bool any;
};

static void look_for_active(void *object, void *argument) {
  const struct context *context = object;
  struct siblings *siblings = argument;
  if (context->active && context->device == siblings->device)
    siblings->any = true;
}

void context_deactivate(struct context *context) {
  streams_delete_of(context);
  events_delete_of(context);
  modules_delete_of(context);
  arrays_delete_of(context);
  memory_delete_of(context);
  state_release(context->device,
                sim_config.devices[context->device].context_overhead_bytes + context_stack_bytes(context));
  spins_end_of(context->group);
  control_free_channels(context->group);
  context->legacy = NULL;
  context->blocking_tail_ns = context->legacy_tail_ns = context->gone_tail_ns = 0;
  context->active = false;
  struct siblings siblings = {.device = context->device};
  handle_visit(HANDLE_CONTEXT, look_for_active, &siblings);
  if (siblings.any)
    return;
  pools_empty_device(context->device);
  graph_memory_empty_device(context->device);
}

static CUresult push(CUcontext handle) {
  if (depth == STACK_DEPTH)
    return CUDA_ERROR_OUT_OF_MEMORY;
  stack[depth++] = handle;
  return CUDA_SUCCESS;
}

static CUresult create(CUcontext *handle, unsigned flags, CUdevice ordinal) {
  unsigned device;
  CUresult result = driver_enter();
  if (result != CUDA_SUCCESS)
    return result;
  if (!handle || (flags & ~(unsigned)ALL_FLAGS) || (flags & CU_CTX_SCHED_MASK) == CU_CTX_SCHED_MASK)
    return driver_leave(CUDA_ERROR_INVALID_VALUE);
  if (!visible_device(ordinal, &device))
    return driver_leave(CUDA_ERROR_INVALID_DEVICE);
  result = capture_check_unsafe_call();
  if (result != CUDA_SUCCESS)
    return driver_leave(result);
  struct context *context = context_new(device, flags);
  if (!context)
    return driver_leave(CUDA_ERROR_OUT_OF_MEMORY);
  result = context_activate(context);
  if (result == CUDA_SUCCESS)
    result = push(context->handle);
  if (result == CUDA_SUCCESS)
    *handle = context->handle;
  else if (context->active)
    context_deactivate(context);
  if (result != CUDA_SUCCESS)
    context_delete(context);
  return driver_leave(result);
}

CUresult CUDAAPI cuCtxCreate(CUcontext *handle, unsigned int flags, CUdevice device) {
  return create(handle, flags, device);
}

CUresult CUDAAPI cuCtxCreate_v2(CUcontext *handle, unsigned int flags, CUdevice device) {
  return create(handle, flags, device);
}

CUresult CUDAAPI cuCtxCreate_v3(CUcontext *handle, CUexecAffinityParam *affinity, int affinity_count,
                                unsigned int flags, CUdevice device) {
  if (driver_check_ready() != CUDA_SUCCESS)
    return CUDA_ERROR_NOT_INITIALIZED;
  if (affinity || affinity_count)
    return CUDA_ERROR_UNSUPPORTED_EXEC_AFFINITY;
  return create(handle, flags, device);
}

CUresult CUDAAPI cuCtxCreate_v4(CUcontext *handle, CUctxCreateParams *parameters, unsigned int flags, CUdevice device) {
  if (driver_check_ready() != CUDA_SUCCESS)
    return CUDA_ERROR_NOT_INITIALIZED;
  if (parameters && (parameters->execAffinityParams || parameters->numExecAffinityParams))
    return CUDA_ERROR_UNSUPPORTED_EXEC_AFFINITY;
  if (parameters && parameters->cigParams)
    return CUDA_ERROR_NOT_SUPPORTED;
  return create(handle, flags, device);
}

/* Queued work ends first: by the CUDA C++ Programming Guide this flushes the buffer of printf(). */
CUresult CUDAAPI cuCtxDestroy_v2(CUcontext handle) {
  CUresult result = driver_enter();
  if (result != CUDA_SUCCESS)
    return result;
  struct context *context = handle_object(HANDLE_CONTEXT, handle);
  if (!context || context == context_primary(context->device))
    return driver_leave(CUDA_ERROR_INVALID_CONTEXT);
  result = capture_check_unsafe_call();
  if (result != CUDA_SUCCESS)
    return driver_leave(result);
  if (depth > 0 && stack[depth - 1] == handle)
    depth--;
  result = driver_leave_and_wait(streams_latest_tail(context));
  if (result == CUDA_SUCCESS)
    result = driver_enter();
  if (result != CUDA_SUCCESS)
    return result;
  context = handle_object(HANDLE_CONTEXT, handle);
  if (!context) /* another thread has been faster */
    return driver_leave(CUDA_ERROR_INVALID_CONTEXT);
  context_deactivate(context);
  context_delete(context);
  return driver_leave(CUDA_SUCCESS);
}

CUresult CUDAAPI cuCtxDestroy(CUcontext handle) {
  return cuCtxDestroy_v2(handle);
}

CUresult CUDAAPI cuCtxPushCurrent_v2(CUcontext handle) {
  struct context *context;
  CUresult result = driver_enter();
  if (result != CUDA_SUCCESS)
    return result;
  result = handle ? context_find(handle, &context) : CUDA_ERROR_INVALID_CONTEXT;
  return driver_leave(result == CUDA_SUCCESS ? push(handle) : result);
}

CUresult CUDAAPI cuCtxPushCurrent(CUcontext handle) {
  return cuCtxPushCurrent_v2(handle);
}

CUresult CUDAAPI cuCtxPopCurrent_v2(CUcontext *handle) {
  CUresult result = driver_enter();
  if (result != CUDA_SUCCESS)
    return result;
  if (depth == 0)
    return driver_leave(CUDA_ERROR_INVALID_CONTEXT);
  depth--;
  if (handle)
    *handle = stack[depth];
  return driver_leave(CUDA_SUCCESS);
}

CUresult CUDAAPI cuCtxPopCurrent(CUcontext *handle) {
  return cuCtxPopCurrent_v2(handle);
}

/* Replaces the top of the stack; NULL takes it away. */
CUresult CUDAAPI cuCtxSetCurrent(CUcontext handle) {
  struct context *context;
  CUresult result = driver_enter();
  if (result != CUDA_SUCCESS)
    return result;
  if (handle)
    result = context_find(handle, &context);
  if (result != CUDA_SUCCESS)
    return driver_leave(result);
  if (depth > 0)
    depth--;
  return driver_leave(handle ? push(handle) : CUDA_SUCCESS);
}

CUresult CUDAAPI cuCtxGetCurrent(CUcontext *handle) {
  CUresult result = driver_enter();
  if (result != CUDA_SUCCESS)
    return result;
  if (!handle)
    return driver_leave(CUDA_ERROR_INVALID_VALUE);
  *handle = depth > 0 ? stack[depth - 1] : NULL;
  return driver_leave(CUDA_SUCCESS);
}
