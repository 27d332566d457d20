/* Queries of a pointer. */
#include "contexts.h"
#include "device_memory.h"
#include "pools.h"
#include "visible.h"
#include "vmm.h"

/* The memory at an address: mapped physical memory counts as device memory. */
struct pointee {
  struct allocation allocation;
  const struct region *region;
  unsigned device;
  bool on_host, mapped;
};

static bool look_up(CUdeviceptr address, struct pointee *pointee) {
  if (!memory_find(address, &pointee->allocation))
    return false;
  const struct region *region = pointee->allocation.region;
  pointee->region = region;
  pointee->device = region->device;
  pointee->on_host = region->kind == REGION_HOST || region->kind == REGION_REGISTERED;
  pointee->mapped = true;
  if (region->kind != REGION_RESERVATION)
    return true;
  const struct mapping *mapping = vmm_mapping_at(region, address);
  pointee->mapped = mapping != NULL;
  if (mapping) {
    pointee->device = mapping->physical->device;
    pointee->on_host = mapping->physical->on_host;
  }
  return true;
}

static CUresult answer(const struct pointee *pointee, CUpointer_attribute attribute, CUdeviceptr address, void *data) {
  const struct region *region = pointee->region;
  switch (attribute) {
  case CU_POINTER_ATTRIBUTE_CONTEXT:
    *(CUcontext *)data = region->context ? region->context->handle : NULL;
    return CUDA_SUCCESS;
  case CU_POINTER_ATTRIBUTE_MEMORY_TYPE:
    *(unsigned *)data = pointee->on_host ? CU_MEMORYTYPE_HOST : CU_MEMORYTYPE_DEVICE;
    return CUDA_SUCCESS;
  case CU_POINTER_ATTRIBUTE_DEVICE_POINTER:
    *(CUdeviceptr *)data = address;
    return CUDA_SUCCESS;
  case CU_POINTER_ATTRIBUTE_HOST_POINTER:
    if (!pointee->on_host && region->kind != REGION_MANAGED)
      return CUDA_ERROR_INVALID_VALUE;
    *(void **)data = (void *)(uintptr_t)address;
    return CUDA_SUCCESS;
  case CU_POINTER_ATTRIBUTE_BUFFER_ID:
    *(unsigned long long *)data = region->id;
    return CUDA_SUCCESS;
  case CU_POINTER_ATTRIBUTE_IS_MANAGED:
    *(unsigned *)data = region->kind == REGION_MANAGED;
    return CUDA_SUCCESS;
  case CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL:
    *(int *)data = visible_ordinal(pointee->device);
    return CUDA_SUCCESS;
  case CU_POINTER_ATTRIBUTE_RANGE_START_ADDR:
    *(CUdeviceptr *)data = pointee->allocation.base;
    return CUDA_SUCCESS;
  case CU_POINTER_ATTRIBUTE_RANGE_SIZE:
    *(size_t *)data = pointee->allocation.size;
    return CUDA_SUCCESS;
  case CU_POINTER_ATTRIBUTE_MAPPED:
    *(unsigned *)data = pointee->mapped;
    return CUDA_SUCCESS;
  case CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE:
    *(CUmemoryPool *)data = region->pool ? region->pool->handle : NULL;
    return CUDA_SUCCESS;
  default:
    return CUDA_ERROR_NOT_SUPPORTED;
  }
}

CUresult CUDAAPI cuPointerGetAttribute(void *data, CUpointer_attribute attribute, CUdeviceptr address) {
  struct context *context;
  struct pointee pointee;
  FORWARD_IF_ERROR(context_enter(&context));
  if (!data || !look_up(address, &pointee))
    return driver_leave(CUDA_ERROR_INVALID_VALUE);
  return driver_leave(answer(&pointee, attribute, address, data));
}
