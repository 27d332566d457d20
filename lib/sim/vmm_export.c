/* Physical memory for other processes, as file descriptors: a file in memory that holds the number of what is shared.
 */
#include <sys/syscall.h>
#include <unistd.h>

#include "driver.h"
#include "shared_memory.h"
#include "visible.h"
#include "vmm.h"

static CUresult export(struct physical *physical, int *descriptor) {
  if (!physical->shared_id)
    physical->shared_id = shared_memory_new((struct shared_memory){physical->device, physical->size, physical->size});
  if (!physical->shared_id)
    return CUDA_ERROR_OUT_OF_MEMORY;
  int fd = (int)syscall(SYS_memfd_create, "vgpusim-memory", 1u /* MFD_CLOEXEC */);
  if (fd < 0)
    return CUDA_ERROR_OUT_OF_MEMORY;
  if (write(fd, &physical->shared_id, sizeof physical->shared_id) != sizeof physical->shared_id) {
    close(fd);
    return CUDA_ERROR_OUT_OF_MEMORY;
  }
  *descriptor = fd;
  return CUDA_SUCCESS;
}

CUresult CUDAAPI cuMemExportToShareableHandle(void *shareable, CUmemGenericAllocationHandle handle,
                                              CUmemAllocationHandleType type, unsigned long long flags) {
  FORWARD_IF_ERROR(driver_enter());
  struct physical *physical = vmm_find(handle);
  if (!shareable || !physical || physical->on_host || flags || type != CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR ||
      physical->properties.requestedHandleTypes != type)
    return driver_leave(CUDA_ERROR_INVALID_VALUE);
  return driver_leave(export(physical, shareable));
}

static CUresult import(int descriptor, CUmemGenericAllocationHandle *handle) {
  struct shared_memory memory;
  uint64_t id;
  if (pread(descriptor, &id, sizeof id, 0) != sizeof id || !shared_memory_import(id, SHARED_BY_ANYONE, &memory))
    return CUDA_ERROR_INVALID_VALUE;
  struct physical model = {.device = memory.device, .size = memory.size_bytes, .shared_id = id, .imported = true};
  model.properties.type = CU_MEM_ALLOCATION_TYPE_PINNED;
  model.properties.requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
  model.properties.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
  model.properties.location.id = visible_ordinal(memory.device);
  const struct physical *physical = vmm_new(model);
  if (!physical) {
    shared_memory_end_import(id);
    return CUDA_ERROR_OUT_OF_MEMORY;
  }
  *handle = physical->handle;
  return CUDA_SUCCESS;
}

/* The descriptor travels in the place of the pointer. */
CUresult CUDAAPI cuMemImportFromShareableHandle(CUmemGenericAllocationHandle *handle, void *shareable,
                                                CUmemAllocationHandleType type) {
  FORWARD_IF_ERROR(driver_enter());
  if (!handle || type != CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR)
    return driver_leave(CUDA_ERROR_INVALID_VALUE);
  return driver_leave(import((int)(intptr_t)shareable, handle));
}
