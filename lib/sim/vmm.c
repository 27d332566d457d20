/* cuMemCreate, cuMemAddressReserve, cuMemMap and their relatives. Mapped memory keeps no data: what is copied there is
 * lost. */
#include "vmm.h"

#include <stdlib.h>

#include "device_memory.h"
#include "driver.h"
#include "handles.h"
#include "pools.h"
#include "shared_memory.h"
#include "state.h"
#include "visible.h"

struct physical *vmm_find(CUmemGenericAllocationHandle handle) {
  struct physical *physical = handle_object(HANDLE_PHYSICAL_MEMORY, (void *)(uintptr_t)handle);
  return physical && physical->references ? physical : NULL;
}

static bool is_on_host(const CUmemAllocationProp *properties) {
  return properties->location.type == CU_MEM_LOCATION_TYPE_HOST ||
         properties->location.type == CU_MEM_LOCATION_TYPE_HOST_NUMA;
}

static CUresult check_properties(const CUmemAllocationProp *properties, unsigned *device) {
  if (!properties || properties->type != CU_MEM_ALLOCATION_TYPE_PINNED)
    return CUDA_ERROR_INVALID_VALUE;
  if (is_on_host(properties)) {
    *device = 0;
    return CUDA_SUCCESS;
  }
  if (properties->location.type != CU_MEM_LOCATION_TYPE_DEVICE)
    return CUDA_ERROR_NOT_SUPPORTED;
  return visible_device(properties->location.id, device) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_DEVICE;
}

CUresult CUDAAPI cuMemGetAllocationGranularity(size_t *granularity, const CUmemAllocationProp *properties,
                                               CUmemAllocationGranularity_flags option) {
  unsigned device;
  FORWARD_IF_ERROR(driver_enter());
  if (!granularity || (option != CU_MEM_ALLOC_GRANULARITY_MINIMUM && option != CU_MEM_ALLOC_GRANULARITY_RECOMMENDED))
    return driver_leave(CUDA_ERROR_INVALID_VALUE);
  CUresult result = check_properties(properties, &device);
  if (result == CUDA_SUCCESS)
    *granularity = DEVICE_PAGE;
  return driver_leave(result);
}

struct physical *vmm_new(struct physical model) {
  struct physical *physical = malloc(sizeof *physical);
  void *handle = physical ? handle_new(HANDLE_PHYSICAL_MEMORY, physical) : NULL;
  if (!handle) {
    free(physical);
    return NULL;
  }
  *physical = model;
  physical->handle = (uintptr_t)handle;
  physical->references = 1;
  return physical;
}

static bool is_shareable(CUmemAllocationHandleType types) {
  return types == CU_MEM_HANDLE_TYPE_NONE || types == CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
}

CUresult CUDAAPI cuMemCreate(CUmemGenericAllocationHandle *handle, size_t size, const CUmemAllocationProp *properties,
                             unsigned long long flags) {
  unsigned device;
  FORWARD_IF_ERROR(driver_enter());
  if (!handle || size == 0 || size % DEVICE_PAGE || flags)
    return driver_leave(CUDA_ERROR_INVALID_VALUE);
  CUresult result = check_properties(properties, &device);
  if (result == CUDA_SUCCESS && !is_shareable(properties->requestedHandleTypes))
    result = CUDA_ERROR_NOT_SUPPORTED;
  if (result != CUDA_SUCCESS)
    return driver_leave(result);
  bool on_host = is_on_host(properties);
  if (on_host && properties->requestedHandleTypes != CU_MEM_HANDLE_TYPE_NONE)
    return driver_leave(CUDA_ERROR_INVALID_VALUE);
  if (!on_host && !pools_take_memory(device, size))
    return driver_leave(CUDA_ERROR_OUT_OF_MEMORY);
  const struct physical *physical =
      vmm_new((struct physical){.device = device, .on_host = on_host, .size = size, .properties = *properties});
  if (!physical) {
    state_release(device, on_host ? 0 : size);
    return driver_leave(CUDA_ERROR_OUT_OF_MEMORY);
  }
  *handle = physical->handle;
  return driver_leave(CUDA_SUCCESS);
}

static void free_if_unused(struct physical *physical) {
  if (physical->references || physical->mappings)
    return;
  if (physical->imported)
    shared_memory_end_import(physical->shared_id);
  else if (!physical->shared_id || !shared_memory_give_up(physical->shared_id))
    state_release(physical->device, physical->on_host ? 0 : physical->size);
  handle_delete((void *)(uintptr_t)physical->handle);
  free(physical);
}

void vmm_hold(struct physical *physical) {
  physical->mappings++;
}

void vmm_let_go(struct physical *physical) {
  physical->mappings--;
  free_if_unused(physical);
}

void vmm_release(struct physical *physical) {
  physical->references--;
  free_if_unused(physical);
}

CUresult CUDAAPI cuMemGetAllocationPropertiesFromHandle(CUmemAllocationProp *properties,
                                                        CUmemGenericAllocationHandle handle) {
  FORWARD_IF_ERROR(driver_enter());
  const struct physical *physical = vmm_find(handle);
  if (!properties || !physical)
    return driver_leave(CUDA_ERROR_INVALID_VALUE);
  *properties = physical->properties;
  return driver_leave(CUDA_SUCCESS);
}

CUresult CUDAAPI cuMemAddressReserve(CUdeviceptr *address, size_t size, size_t alignment, CUdeviceptr hint,
                                     unsigned long long flags) {
  FORWARD_IF_ERROR(driver_enter());
  (void)hint; /* only a hint */
  if (!address || size == 0 || size % DEVICE_PAGE || (alignment & (alignment - 1)) || flags)
    return driver_leave(CUDA_ERROR_INVALID_VALUE);
  if (alignment > DEVICE_PAGE)
    return driver_leave(CUDA_ERROR_NOT_SUPPORTED);
  const struct region *region = region_new(REGION_RESERVATION, size, KEEP_NEVER, false);
  if (!region)
    return driver_leave(CUDA_ERROR_OUT_OF_MEMORY);
  *address = region->base;
  return driver_leave(CUDA_SUCCESS);
}

CUresult CUDAAPI cuMemAddressFree(CUdeviceptr address, size_t size) {
  FORWARD_IF_ERROR(driver_enter());
  struct region *region = region_find(address);
  if (!region || region->kind != REGION_RESERVATION || region->base != address || region->size != size ||
      region->mappings)
    return driver_leave(CUDA_ERROR_INVALID_VALUE);
  region_delete(region);
  return driver_leave(CUDA_SUCCESS);
}

/* The reservation that holds all of a range. */
static struct region *find_reservation(CUdeviceptr address, size_t size) {
  struct region *region = region_find(address);
  if (!region || region->kind != REGION_RESERVATION || size == 0 || size > region->base + region->size - address)
    return NULL;
  return region;
}

struct mapping *vmm_mapping_at(const struct region *reservation, uintptr_t address) {
  struct mapping *mapping = reservation->mappings;
  while (mapping && (address < mapping->base || address >= mapping->base + mapping->size))
    mapping = mapping->next;
  return mapping;
}

static bool overlaps(const struct mapping *mapping, CUdeviceptr address, size_t size) {
  return mapping->base < address + size && address < mapping->base + mapping->size;
}

CUresult CUDAAPI cuMemMap(CUdeviceptr address, size_t size, size_t offset, CUmemGenericAllocationHandle handle,
                          unsigned long long flags) {
  FORWARD_IF_ERROR(driver_enter());
  struct region *region = find_reservation(address, size);
  struct physical *physical = vmm_find(handle);
  if (!region || !physical || flags || address % DEVICE_PAGE || size % DEVICE_PAGE || offset != 0 ||
      size > physical->size)
    return driver_leave(CUDA_ERROR_INVALID_VALUE);
  for (const struct mapping *other = region->mappings; other; other = other->next)
    if (overlaps(other, address, size))
      return driver_leave(CUDA_ERROR_INVALID_VALUE);
  struct mapping *mapping = calloc(1, sizeof *mapping);
  if (!mapping)
    return driver_leave(CUDA_ERROR_OUT_OF_MEMORY);
  *mapping = (struct mapping){.base = address, .size = size, .physical = physical, .next = region->mappings};
  region->mappings = mapping;
  vmm_hold(physical);
  return driver_leave(CUDA_SUCCESS);
}

/* A range for cuMemUnmap and cuMemSetAccess holds whole mappings, and no gap. */
static bool covers_mappings(const struct region *region, CUdeviceptr address, size_t size) {
  size_t covered = 0;
  for (const struct mapping *mapping = region->mappings; mapping; mapping = mapping->next) {
    if (!overlaps(mapping, address, size))
      continue;
    if (mapping->base < address || mapping->base + mapping->size > address + size)
      return false;
    covered += mapping->size;
  }
  return covered == size;
}

CUresult CUDAAPI cuMemUnmap(CUdeviceptr address, size_t size) {
  FORWARD_IF_ERROR(driver_enter());
  struct region *region = find_reservation(address, size);
  if (!region || !covers_mappings(region, address, size))
    return driver_leave(CUDA_ERROR_INVALID_VALUE);
  for (struct mapping **link = &region->mappings; *link;) {
    struct mapping *mapping = *link;
    if (!overlaps(mapping, address, size)) {
      link = &mapping->next;
      continue;
    }
    *link = mapping->next;
    vmm_let_go(mapping->physical);
    free(mapping);
  }
  return driver_leave(CUDA_SUCCESS);
}

CUresult CUDAAPI cuMemSetAccess(CUdeviceptr address, size_t size, const CUmemAccessDesc *access, size_t count) {
  FORWARD_IF_ERROR(driver_enter());
  struct region *region = find_reservation(address, size);
  if (!region || !access || count == 0 || !covers_mappings(region, address, size))
    return driver_leave(CUDA_ERROR_INVALID_VALUE);
  for (struct mapping *mapping = region->mappings; mapping; mapping = mapping->next)
    if (overlaps(mapping, address, size))
      mapping->accessible = access[0].flags != CU_MEM_ACCESS_FLAGS_PROT_NONE;
  return driver_leave(CUDA_SUCCESS);
}

CUresult CUDAAPI cuMemRetainAllocationHandle(CUmemGenericAllocationHandle *handle, void *address) {
  FORWARD_IF_ERROR(driver_enter());
  const struct region *region = region_find((uintptr_t)address);
  struct mapping *mapping =
      region && region->kind == REGION_RESERVATION ? vmm_mapping_at(region, (uintptr_t)address) : NULL;
  if (!handle || !mapping)
    return driver_leave(CUDA_ERROR_INVALID_VALUE);
  mapping->physical->references++;
  *handle = mapping->physical->handle;
  return driver_leave(CUDA_SUCCESS);
}
