/* Managed memory costs nothing until the device touches it, and comes to the device then, unless it is to stay on the
 * host. A fill is all that touches it here. */
#include "managed.h"

#include "capture.h"
#include "device_memory.h"
#include "pools.h"

static struct region *managed_region(uintptr_t address) {
  struct region *region = region_find(address);
  return region && region->kind == REGION_MANAGED ? region : NULL;
}

/* Charges the device for managed memory that it touches. On a full device nothing is charged: a card would make room
 * by moving other managed memory out. */
void managed_touch(uintptr_t address, unsigned device) {
  struct region *region = managed_region(address);
  if (!region || region->stays_on_host || region->charged ||
      !pools_take_memory(device, round_up(region->size, DEVICE_PAGE)))
    return;
  region->device = device;
  region->charged = round_up(region->size, DEVICE_PAGE);
}

/* Only the preferred location changes anything here. */
CUresult CUDAAPI cuMemAdvise_v2(CUdeviceptr address, size_t size, CUmem_advise advice, CUmemLocation location) {
  FORWARD_IF_ERROR(driver_enter());
  struct region *region = managed_region(address);
  if (!region || size == 0 || size > region->base + region->size - address)
    return driver_leave(CUDA_ERROR_INVALID_VALUE);
  if (advice == CU_MEM_ADVISE_SET_PREFERRED_LOCATION)
    region->stays_on_host = location.type == CU_MEM_LOCATION_TYPE_HOST;
  else if (advice == CU_MEM_ADVISE_UNSET_PREFERRED_LOCATION)
    region->stays_on_host = false;
  return driver_leave(CUDA_SUCCESS);
}
