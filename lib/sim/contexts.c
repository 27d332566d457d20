#include "contexts.h"

#include <stdlib.h>

#define STACK_DEPTH 64

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

CUresult context_enter(struct context **context) {
  FORWARD_IF_ERROR(driver_enter());
  CUresult result = context_current(context);
  return result == CUDA_SUCCESS ? CUDA_SUCCESS : driver_leave(result);
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

CUresult context_push(CUcontext handle) {
  if (depth == STACK_DEPTH)
    return CUDA_ERROR_OUT_OF_MEMORY;
  stack[depth++] = handle;
  return CUDA_SUCCESS;
}

void context_pop_if(CUcontext handle) {
  if (depth > 0 && stack[depth - 1] == handle)
    depth--;
}

CUresult CUDAAPI cuCtxPushCurrent_v2(CUcontext handle) {
  struct context *context;
  FORWARD_IF_ERROR(driver_enter());
  CUresult result = handle ? context_find(handle, &context) : CUDA_ERROR_INVALID_CONTEXT;
  return driver_leave(result == CUDA_SUCCESS ? context_push(handle) : result);
}

CUresult CUDAAPI cuCtxPushCurrent(CUcontext handle) {
  return cuCtxPushCurrent_v2(handle);
}

CUresult CUDAAPI cuCtxPopCurrent_v2(CUcontext *handle) {
  FORWARD_IF_ERROR(driver_enter());
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
  return driver_leave(handle ? context_push(handle) : CUDA_SUCCESS);
}

CUresult CUDAAPI cuCtxGetCurrent(CUcontext *handle) {
  FORWARD_IF_ERROR(driver_enter());
  if (!handle)
    return driver_leave(CUDA_ERROR_INVALID_VALUE);
  *handle = depth > 0 ? stack[depth - 1] : NULL;
  return driver_leave(CUDA_SUCCESS);
}
