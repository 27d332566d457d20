/* Memory handles for other processes. Allocations that share a block with others have none here. */
#include <string.h>

#include "capture.h"
#include "device_memory.h"
#include "shared_memory.h"

CUresult CUDAAPI cuIpcGetMemHandle(CUipcMemHandle *handle, CUdeviceptr address) {
  struct context *context;
  struct allocation allocation;
  FORWARD_IF_ERROR(context_enter(&context));
  if (!handle || !memory_find(address, &allocation) || allocation.region->kind != REGION_DEVICE ||
      !allocation.region->charged)
    return driver_leave(CUDA_ERROR_INVALID_VALUE);
  struct region *region = allocation.region;
  if (!region->shared_id)
    region->shared_id = shared_memory_new((struct shared_memory){region->device, region->size, region->charged});
  if (!region->shared_id)
    return driver_leave(CUDA_ERROR_OUT_OF_MEMORY);
  memset(handle, 0, sizeof *handle);
  memcpy(handle, &region->shared_id, sizeof region->shared_id);
  return driver_leave(CUDA_SUCCESS);
}

static CUresult open_shared(uint64_t id, CUdeviceptr *address) {
  struct shared_memory memory;
  if (!shared_memory_import(id, SHARED_BY_OTHERS, &memory))
    return CUDA_ERROR_INVALID_VALUE;
  struct region *region = region_new(REGION_IMPORTED, memory.size_bytes, KEEP_NEVER, false);
  if (!region) {
    shared_memory_end_import(id);
    return CUDA_ERROR_OUT_OF_MEMORY;
  }
  region->device = memory.device;
  region->shared_id = id;
  *address = region->base;
  return CUDA_SUCCESS;
}

CUresult CUDAAPI cuIpcOpenMemHandle(CUdeviceptr *address, CUipcMemHandle handle, unsigned int flags) {
  struct context *context;
  uint64_t id;
  FORWARD_IF_ERROR(context_enter(&context));
  memcpy(&id, &handle, sizeof id);
  if (!address || flags != CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS)
    return driver_leave(CUDA_ERROR_INVALID_VALUE);
  return driver_leave(open_shared(id, address));
}

CUresult CUDAAPI cuIpcOpenMemHandle_v2(CUdeviceptr *address, CUipcMemHandle handle, unsigned int flags) {
  return cuIpcOpenMemHandle(address, handle, flags);
}

CUresult CUDAAPI cuIpcCloseMemHandle(CUdeviceptr address) {
  struct context *context;
  FORWARD_IF_ERROR(context_enter(&context));
  struct region *region = region_find(address);
  if (!region || region->kind != REGION_IMPORTED || region->base != address)
    return driver_leave(CUDA_ERROR_INVALID_VALUE);
  shared_memory_end_import(region->shared_id);
  region_delete(region);
  return driver_leave(CUDA_SUCCESS);
}
