/* Page-locked host memory: ours, or the program's own. It never counts as device memory. */
#include "capture.h"
#include "regions.h"

#define ALLOCATION_FLAGS (CU_MEMHOSTALLOC_PORTABLE | CU_MEMHOSTALLOC_DEVICEMAP | CU_MEMHOSTALLOC_WRITECOMBINED)
#define REGISTRATION_FLAGS 0xfu

CUresult CUDAAPI cuMemHostAlloc(void **address, size_t size, unsigned int flags) {
  struct context *context;
  FORWARD_IF_ERROR(capture_enter_unsafe_call(address, &context));
  if (size == 0 || (flags & ~(unsigned)ALLOCATION_FLAGS))
    return driver_leave(CUDA_ERROR_INVALID_VALUE);
  struct region *region = region_new(REGION_HOST, size, KEEP_ALWAYS, false);
  if (!region)
    return driver_leave(CUDA_ERROR_OUT_OF_MEMORY);
  region->device = context->device;
  region->context = context;
  region->flags = flags | CU_MEMHOSTALLOC_DEVICEMAP;
  *address = (void *)region->base;
  return driver_leave(CUDA_SUCCESS);
}

CUresult CUDAAPI cuMemAllocHost_v2(void **address, size_t size) {
  return cuMemHostAlloc(address, size, 0);
}

CUresult CUDAAPI cuMemAllocHost(void **address, unsigned int size) {
  return cuMemHostAlloc(address, size, 0);
}

static CUresult give_up(void *address, enum region_kind kind, CUresult otherwise) {
  struct context *context;
  FORWARD_IF_ERROR(capture_enter_unsafe_call(address, &context));
  struct region *region = region_find((uintptr_t)address);
  if (!region || region->kind != kind || region->base != (uintptr_t)address)
    return driver_leave(otherwise);
  region_delete(region);
  return driver_leave(CUDA_SUCCESS);
}

CUresult CUDAAPI cuMemFreeHost(void *address) {
  return give_up(address, REGION_HOST, CUDA_ERROR_INVALID_VALUE);
}

CUresult CUDAAPI cuMemHostRegister_v2(void *address, size_t size, unsigned int flags) {
  struct context *context;
  FORWARD_IF_ERROR(capture_enter_unsafe_call(address, &context));
  if (size == 0 || (flags & ~REGISTRATION_FLAGS) || size > UINTPTR_MAX - (uintptr_t)address)
    return driver_leave(CUDA_ERROR_INVALID_VALUE);
  if (region_overlaps((uintptr_t)address, size))
    return driver_leave(CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED);
  struct region *region = region_new_at(REGION_REGISTERED, (uintptr_t)address, size);
  if (!region)
    return driver_leave(CUDA_ERROR_OUT_OF_MEMORY);
  region->device = context->device;
  region->context = context;
  region->flags = CU_MEMHOSTALLOC_DEVICEMAP | (flags & CU_MEMHOSTREGISTER_PORTABLE);
  region->keeps_data = true;
  return driver_leave(CUDA_SUCCESS);
}

CUresult CUDAAPI cuMemHostRegister(void *address, size_t size, unsigned int flags) {
  return cuMemHostRegister_v2(address, size, flags);
}

CUresult CUDAAPI cuMemHostUnregister(void *address) {
  return give_up(address, REGION_REGISTERED, CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED);
}

static CUresult enter_host(const void *output, void *address, const struct region **region) {
  struct context *context;
  FORWARD_IF_ERROR(context_enter(&context));
  *region = region_find((uintptr_t)address);
  if (!output || !*region || ((*region)->kind != REGION_HOST && (*region)->kind != REGION_REGISTERED))
    return driver_leave(CUDA_ERROR_INVALID_VALUE);
  return CUDA_SUCCESS;
}

/* The device sees host memory at the host's own address: both share an address space. */
CUresult CUDAAPI cuMemHostGetDevicePointer_v2(CUdeviceptr *device_address, void *address, unsigned int flags) {
  const struct region *region;
  FORWARD_IF_ERROR(enter_host(device_address, address, &region));
  if (flags != 0)
    return driver_leave(CUDA_ERROR_INVALID_VALUE);
  *device_address = (uintptr_t)address;
  return driver_leave(CUDA_SUCCESS);
}

CUresult CUDAAPI cuMemHostGetFlags(unsigned int *flags, void *address) {
  const struct region *region;
  FORWARD_IF_ERROR(enter_host(flags, address, &region));
  *flags = region->flags;
  return driver_leave(CUDA_SUCCESS);
}
