/* cuMemAlloc and its relatives. */
#include <stdlib.h>

#include "capture.h"
#include "device_memory.h"
#include "limits.h"
#include "pools.h"
#include "state.h"

#define PITCH_ALIGNMENT 512

/* More than the device has is refused before any arithmetic on it could overflow. */
static CUresult allocate(struct context *context, size_t size, CUdeviceptr *address) {
  uintptr_t base;
  if (size == 0)
    return CUDA_ERROR_INVALID_VALUE;
  if (size > sim_config.devices[context->device].memory_bytes)
    return CUDA_ERROR_OUT_OF_MEMORY;
  CUresult result = memory_allocate(context, NULL, size, &base);
  if (result == CUDA_SUCCESS)
    *address = base;
  return result;
}

CUresult CUDAAPI cuMemAlloc_v2(CUdeviceptr *address, size_t size) {
  struct context *context;
  CUresult result = capture_enter_unsafe_call(address, &context);
  return result == CUDA_SUCCESS ? driver_leave(allocate(context, size, address)) : result;
}

/* The pitch, and the size with it; false when that does not fit a number. */
static bool pitch_of(size_t width, size_t height, unsigned element_size, size_t *pitch, size_t *size) {
  if (width == 0 || height == 0 || width > SIZE_MAX / 2 ||
      (element_size != 4 && element_size != 8 && element_size != 16))
    return false;
  *pitch = round_up(width, PITCH_ALIGNMENT);
  return !__builtin_mul_overflow(*pitch, height, size);
}

CUresult CUDAAPI cuMemAllocPitch_v2(CUdeviceptr *address, size_t *pitch, size_t width, size_t height,
                                    unsigned int element_size) {
  struct context *context;
  size_t row, size;
  FORWARD_IF_ERROR(capture_enter_unsafe_call(address, &context));
  if (!pitch || !pitch_of(width, height, element_size, &row, &size))
    return driver_leave(CUDA_ERROR_INVALID_VALUE);
  CUresult result = allocate(context, size, address);
  if (result == CUDA_SUCCESS)
    *pitch = row;
  return driver_leave(result);
}

/* Costs no device memory before the device touches it. */
CUresult CUDAAPI cuMemAllocManaged(CUdeviceptr *address, size_t size, unsigned int flags) {
  struct context *context;
  FORWARD_IF_ERROR(capture_enter_unsafe_call(address, &context));
  if (size == 0 || (flags != CU_MEM_ATTACH_GLOBAL && flags != CU_MEM_ATTACH_HOST))
    return driver_leave(CUDA_ERROR_INVALID_VALUE);
  struct region *region = region_new(REGION_MANAGED, size, KEEP_ALWAYS, false);
  if (!region)
    return driver_leave(CUDA_ERROR_OUT_OF_MEMORY);
  region->device = context->device;
  region->context = context;
  *address = region->base;
  return driver_leave(CUDA_SUCCESS);
}

CUresult CUDAAPI cuMemFree_v2(CUdeviceptr address) {
  struct context *context;
  struct allocation allocation;
  FORWARD_IF_ERROR(context_enter(&context));
  if (address == 0)
    return driver_leave(CUDA_SUCCESS);
  CUresult result = capture_check_unsafe_call();
  if (result != CUDA_SUCCESS)
    return driver_leave(result);
  if (!memory_find(address, &allocation) || allocation.base != address || allocation.region->kind > REGION_MANAGED)
    return driver_leave(CUDA_ERROR_INVALID_VALUE);
  memory_free(&allocation);
  return driver_leave(CUDA_SUCCESS);
}

CUresult CUDAAPI cuMemGetInfo_v2(size_t *free_bytes, size_t *total_bytes) {
  struct context *context;
  FORWARD_IF_ERROR(context_enter(&context));
  if (!free_bytes || !total_bytes)
    return driver_leave(CUDA_ERROR_INVALID_VALUE);
  struct memory_view view = limits_view(context->device);
  *total_bytes = view.total_bytes;
  *free_bytes = view.free_bytes;
  return driver_leave(CUDA_SUCCESS);
}

CUresult CUDAAPI cuMemGetAddressRange_v2(CUdeviceptr *base, size_t *size, CUdeviceptr address) {
  struct context *context;
  struct allocation allocation;
  FORWARD_IF_ERROR(context_enter(&context));
  if (!memory_find(address, &allocation))
    return driver_leave(CUDA_ERROR_NOT_FOUND);
  if (base)
    *base = allocation.base;
  if (size)
    *size = allocation.size;
  return driver_leave(CUDA_SUCCESS);
}

/* The first version of the API has 32-bit addresses and sizes. */

static unsigned clamp(size_t value) {
  return value > UINT32_MAX ? UINT32_MAX : (unsigned)value;
}

CUresult CUDAAPI cuMemAlloc(CUdeviceptr_v1 *address, unsigned int size) {
  struct context *context;
  FORWARD_IF_ERROR(capture_enter_unsafe_call(address, &context));
  if (size == 0)
    return driver_leave(CUDA_ERROR_INVALID_VALUE);
  uint64_t charge = round_up(size, DEVICE_PAGE);
  if (!pools_take_memory(context->device, charge))
    return driver_leave(CUDA_ERROR_OUT_OF_MEMORY);
  struct region *region = region_new(REGION_DEVICE, size, KEEP_IF_SMALL, true);
  if (!region) {
    state_release(context->device, charge);
    return driver_leave(CUDA_ERROR_OUT_OF_MEMORY);
  }
  region->device = context->device;
  region->charged = charge;
  region->context = context;
  *address = (CUdeviceptr_v1)region->base;
  return driver_leave(CUDA_SUCCESS);
}

CUresult CUDAAPI cuMemAllocPitch(CUdeviceptr_v1 *address, unsigned int *pitch, unsigned int width, unsigned int height,
                                 unsigned int element_size) {
  size_t row, size;
  if (driver_check_ready() != CUDA_SUCCESS)
    return CUDA_ERROR_NOT_INITIALIZED;
  if (!pitch || !pitch_of(width, height, element_size, &row, &size) || size > UINT32_MAX)
    return CUDA_ERROR_INVALID_VALUE;
  CUresult result = cuMemAlloc(address, (unsigned)size);
  if (result == CUDA_SUCCESS)
    *pitch = (unsigned)row;
  return result;
}

CUresult CUDAAPI cuMemFree(CUdeviceptr_v1 address) {
  return cuMemFree_v2(address);
}

CUresult CUDAAPI cuMemGetInfo(unsigned int *free_bytes, unsigned int *total_bytes) {
  size_t free_size, total_size;
  FORWARD_IF_ERROR(cuMemGetInfo_v2(free_bytes ? &free_size : NULL, total_bytes ? &total_size : NULL));
  *free_bytes = clamp(free_size);
  *total_bytes = clamp(total_size);
  return CUDA_SUCCESS;
}

CUresult CUDAAPI cuMemGetAddressRange(CUdeviceptr_v1 *base, unsigned int *size, CUdeviceptr_v1 address) {
  CUdeviceptr start = 0;
  size_t length = 0;
  FORWARD_IF_ERROR(cuMemGetAddressRange_v2(&start, &length, address));
  if (base)
    *base = (CUdeviceptr_v1)start;
  if (size)
    *size = clamp(length);
  return CUDA_SUCCESS;
}
