/* Multicast objects. */
#include <stdlib.h>

#include "bindings.h"
#include "driver.h"
#include "visible.h"

struct multicast {
  void *handle;
  size_t size;
  struct binding *bindings;
};

static struct multicast *find(CUmemGenericAllocationHandle handle) {
  return handle_object(HANDLE_MULTICAST, (void *)(uintptr_t)handle);
}

CUresult CUDAAPI cuMulticastGetGranularity(size_t *granularity, const CUmulticastObjectProp *properties,
                                           CUmulticastGranularity_flags option) {
  (void)option;
  FORWARD_IF_ERROR(driver_enter());
  if (!granularity || !properties)
    return driver_leave(CUDA_ERROR_INVALID_VALUE);
  *granularity = DEVICE_PAGE;
  return driver_leave(CUDA_SUCCESS);
}

CUresult CUDAAPI cuMulticastCreate(CUmemGenericAllocationHandle *handle, const CUmulticastObjectProp *properties) {
  FORWARD_IF_ERROR(driver_enter());
  if (!handle || !properties || properties->size == 0 || properties->size % DEVICE_PAGE)
    return driver_leave(CUDA_ERROR_INVALID_VALUE);
  struct multicast *multicast = calloc(1, sizeof *multicast);
  void *made = multicast ? handle_new(HANDLE_MULTICAST, multicast) : NULL;
  if (!made) {
    free(multicast);
    return driver_leave(CUDA_ERROR_OUT_OF_MEMORY);
  }
  *multicast = (struct multicast){.handle = made, .size = properties->size};
  *handle = (uintptr_t)made;
  return driver_leave(CUDA_SUCCESS);
}

CUresult CUDAAPI cuMulticastAddDevice(CUmemGenericAllocationHandle handle, CUdevice ordinal) {
  unsigned device;
  FORWARD_IF_ERROR(driver_enter());
  return driver_leave(find(handle) && visible_device(ordinal, &device) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE);
}

static CUresult bind_to(CUmemGenericAllocationHandle handle, size_t offset, struct physical *physical, size_t size) {
  struct multicast *multicast = find(handle);
  if (!multicast || !physical || size == 0 || size % DEVICE_PAGE || size > physical->size || offset % DEVICE_PAGE ||
      offset > multicast->size || size > multicast->size - offset)
    return CUDA_ERROR_INVALID_VALUE;
  struct binding model = {.physical = physical, .device = physical->device, .offset = offset, .size = size};
  return bind_memory(&multicast->bindings, &model) ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

CUresult CUDAAPI cuMulticastBindMem(CUmemGenericAllocationHandle handle, size_t offset,
                                    CUmemGenericAllocationHandle memory, size_t memory_offset, size_t size,
                                    unsigned long long flags) {
  FORWARD_IF_ERROR(driver_enter());
  return driver_leave(memory_offset || flags ? CUDA_ERROR_INVALID_VALUE
                                             : bind_to(handle, offset, vmm_find(memory), size));
}

CUresult CUDAAPI cuMulticastBindAddr(CUmemGenericAllocationHandle handle, size_t offset, CUdeviceptr address,
                                     size_t size, unsigned long long flags) {
  FORWARD_IF_ERROR(driver_enter());
  const struct region *region = region_find(address);
  const struct mapping *mapping = region && region->kind == REGION_RESERVATION ? vmm_mapping_at(region, address) : NULL;
  return driver_leave(flags || !mapping ? CUDA_ERROR_INVALID_VALUE : bind_to(handle, offset, mapping->physical, size));
}

CUresult CUDAAPI cuMulticastUnbind(CUmemGenericAllocationHandle handle, CUdevice ordinal, size_t offset, size_t size) {
  unsigned device;
  FORWARD_IF_ERROR(driver_enter());
  struct multicast *multicast = find(handle);
  if (!multicast || !visible_device(ordinal, &device))
    return driver_leave(CUDA_ERROR_INVALID_VALUE);
  for (struct binding **link = &multicast->bindings; *link; link = &(*link)->next)
    if ((*link)->device == device && (*link)->offset == offset && (*link)->size == size) {
      unbind_memory(link);
      return driver_leave(CUDA_SUCCESS);
    }
  return driver_leave(CUDA_ERROR_INVALID_VALUE);
}

static CUresult release(struct multicast *multicast) {
  if (!multicast)
    return CUDA_ERROR_INVALID_VALUE;
  bindings_end(&multicast->bindings);
  handle_delete(multicast->handle);
  free(multicast);
  return CUDA_SUCCESS;
}

/* Physical memory, or a multicast object. */
CUresult CUDAAPI cuMemRelease(CUmemGenericAllocationHandle handle) {
  FORWARD_IF_ERROR(driver_enter());
  struct physical *physical = vmm_find(handle);
  if (!physical)
    return driver_leave(release(find(handle)));
  vmm_release(physical);
  return driver_leave(CUDA_SUCCESS);
}
