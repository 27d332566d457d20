/* Memory for the tiles of sparse arrays. */
#include <string.h>

#include "arrays.h"
#include "bindings.h"

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
      unbind_memory(link);
    return CUDA_SUCCESS;
  }
  struct physical *physical = vmm_find(info->memHandle.memHandle);
  if (info->memOperationType != CU_MEM_OPERATION_TYPE_MAP || !physical ||
      !(physical->properties.allocFlags.usage & CU_MEM_CREATE_USAGE_TILE_POOL))
    return CUDA_ERROR_INVALID_VALUE;
  if (*link)
    unbind_memory(link);
  return bind_memory(tiles, &(struct binding){.physical = physical, .place = *info}) ? CUDA_SUCCESS
                                                                                     : CUDA_ERROR_OUT_OF_MEMORY;
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
  FORWARD_IF_ERROR(driver_enter());
  return driver_leave(list ? map_tiles(list, count) : CUDA_ERROR_INVALID_VALUE);
}

CUresult CUDAAPI cuMemMapArrayAsync_ptsz(CUarrayMapInfo *list, unsigned count, CUstream stream) {
  return cuMemMapArrayAsync(list, count, stream);
}
