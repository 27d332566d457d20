/* Tiles of sparse arrays and multicast objects hold physical memory, as handles and mappings do. Nothing is transferred
 * by them. */
#include "bindings.h"

#include <stdlib.h>
#include <string.h>

#include "driver.h"
#include "handles.h"
#include "streams.h"
#include "visible.h"
#include "vmm.h"

struct binding {
  struct binding *next;
  struct physical *physical;
  CUarrayMapInfo place; /* of a tile: what of the array */
  unsigned device;      /* of a multicast object */
  size_t offset, size;
};

static bool bind(struct binding **bindings, const struct binding *model) {
  struct binding *binding = malloc(sizeof *binding);
  if (!binding)
    return false;
  *binding = *model;
  binding->next = *bindings;
  *bindings = binding;
  vmm_hold(binding->physical);
  return true;
}

static void unbind(struct binding **link) {
  struct binding *binding = *link;
  *link = binding->next;
  vmm_let_go(binding->physical);
  free(binding);
}

void bindings_end(struct binding **bindings) {
  while (*bindings)
    unbind(bindings);
}

/* ---- tiles of sparse arrays ----------------------------------------------------------------------------------------
 */

static bool is_at(const struct binding *binding, const CUarrayMapInfo *place) {
  return binding->place.subresourceType == place->subresourceType &&
         memcmp(&binding->place.subresource, &place->subresource, sizeof place->subresource) == 0;
}

static CUresult map_tile(const CUarrayMapInfo *info, struct binding **tiles) {
  struct binding **link = tiles;
  while (*link && !is_at(*link, info))
    link = &(*link)->next;
  if (info->memOperationType == CU_MEM_OPERATION_TYPE_UNMAP) {
    if (*link)
      unbind(link);
    return CUDA_SUCCESS;
  }
  struct physical *physical = vmm_find(info->memHandle.memHandle);
  if (info->memOperationType != CU_MEM_OPERATION_TYPE_MAP || !physical ||
      !(physical->properties.allocFlags.usage & CU_MEM_CREATE_USAGE_TILE_POOL))
    return CUDA_ERROR_INVALID_VALUE;
  if (*link)
    unbind(link);
  return bind(tiles, &(struct binding){.physical = physical, .place = *info}) ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

/* At once, whatever the stream still does: work takes no memory from tiles. */
static CUresult map_tiles(const CUarrayMapInfo *list, unsigned count) {
  for (unsigned i = 0; i < count; i++) {
    bool is_array = list[i].resourceType == CU_RESOURCE_TYPE_ARRAY;
    const void *array = is_array ? (void *)list[i].resource.array : (void *)list[i].resource.mipmap;
    struct binding **tiles = array_tiles(is_array ? HANDLE_ARRAY : HANDLE_MIPMAPPED_ARRAY, array);
    CUresult result = tiles ? map_tile(&list[i], tiles) : CUDA_ERROR_INVALID_VALUE;
    if (result != CUDA_SUCCESS)
      return result;
  }
  return CUDA_SUCCESS;
}

CUresult CUDAAPI cuMemMapArrayAsync(CUarrayMapInfo *list, unsigned count, CUstream stream) {
  (void)stream;
  CUresult result = driver_enter();
  if (result != CUDA_SUCCESS)
    return result;
  return driver_leave(list ? map_tiles(list, count) : CUDA_ERROR_INVALID_VALUE);
}

CUresult CUDAAPI cuMemMapArrayAsync_ptsz(CUarrayMapInfo *list, unsigned count, CUstream stream) {
  return cuMemMapArrayAsync(list, count, stream);
}

/* ---- multicast objects ---------------------------------------------------------------------------------------------
 */

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
  CUresult result = driver_enter();
  if (result != CUDA_SUCCESS)
    return result;
  if (!granularity || !properties)
    return driver_leave(CUDA_ERROR_INVALID_VALUE);
  *granularity = DEVICE_PAGE;
  return driver_leave(CUDA_SUCCESS);
}

CUresult CUDAAPI cuMulticastCreate(CUmemGenericAllocationHandle *handle, const CUmulticastObjectProp *properties) {
  CUresult result = driver_enter();
  if (result != CUDA_SUCCESS)
    return result;
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
  CUresult result = driver_enter();
  if (result != CUDA_SUCCESS)
    return result;
  return driver_leave(find(handle) && visible_device(ordinal, &device) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE);
}

static CUresult bind_to(CUmemGenericAllocationHandle handle, size_t offset, struct physical *physical, size_t size) {
  struct multicast *multicast = find(handle);
  if (!multicast || !physical || size == 0 || size % DEVICE_PAGE || size > physical->size || offset % DEVICE_PAGE ||
      offset > multicast->size || size > multicast->size - offset)
    return CUDA_ERROR_INVALID_VALUE;
  struct binding model = {.physical = physical, .device = physical->device, .offset = offset, .size = size};
  return bind(&multicast->bindings, &model) ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

CUresult CUDAAPI cuMulticastBindMem(CUmemGenericAllocationHandle handle, size_t offset,
                                    CUmemGenericAllocationHandle memory, size_t memory_offset, size_t size,
                                    unsigned long long flags) {
  CUresult result = driver_enter();
  if (result != CUDA_SUCCESS)
    return result;
  return driver_leave(memory_offset || flags ? CUDA_ERROR_INVALID_VALUE
                                             : bind_to(handle, offset, vmm_find(memory), size));
}

CUresult CUDAAPI cuMulticastBindAddr(CUmemGenericAllocationHandle handle, size_t offset, CUdeviceptr address,
                                     size_t size, unsigned long long flags) {
  CUresult result = driver_enter();
  if (result != CUDA_SUCCESS)
    return result;
  const struct region *region = region_find(address);
  const struct mapping *mapping = region && region->kind == REGION_RESERVATION ? vmm_mapping_at(region, address) : NULL;
  return driver_leave(flags || !mapping ? CUDA_ERROR_INVALID_VALUE : bind_to(handle, offset, mapping->physical, size));
}

CUresult CUDAAPI cuMulticastUnbind(CUmemGenericAllocationHandle handle, CUdevice ordinal, size_t offset, size_t size) {
  unsigned device;
  CUresult result = driver_enter();
  if (result != CUDA_SUCCESS)
    return result;
  struct multicast *multicast = find(handle);
  if (!multicast || !visible_device(ordinal, &device))
    return driver_leave(CUDA_ERROR_INVALID_VALUE);
  for (struct binding **link = &multicast->bindings; *link; link = &(*link)->next)
    if ((*link)->device == device && (*link)->offset == offset && (*link)->size == size) {
      unbind(link);
      return driver_leave(CUDA_SUCCESS);
    }
  return driver_leave(CUDA_ERROR_INVALID_VALUE);
}

bool multicast_release(CUmemGenericAllocationHandle handle) {
  struct multicast *multicast = find(handle);
  if (!multicast)
    return false;
  bindings_end(&multicast->bindings);
  handle_delete(multicast->handle);
  free(multicast);
  return true;
}
