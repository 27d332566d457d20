/*
 * Memory of the virtual memory management calls is the program's from cuMemCreate until its handle has been released
 * as often as it was given out and its last mapping is gone, in any order. A sparse array or a multicast
 * object that it is bound to keeps it, too: NVML is asked then.
 */
#include "cuda/host_memory.h"
#include "cuda/memory.h"
#include "cuda/overhead.h"
#include "device/process.h"
#include "memory/table.h"

#include <stdlib.h>

struct physical {
  struct device *device;
  bool is_on_host; /* in the place of the device's */
  bool may_stay;   /* others, or a sparse array, may have it still when we have given it up */
  uint64_t bytes;
  uint64_t handle;
  int references; /* the handle's */
  int mappings;
};

/* A single lock for all counts suffices: these calls take the driver tens of microseconds. */
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct table handles = TABLE_INITIALIZER;  /* handle -> physical */
static struct table mappings = TABLE_INITIALIZER; /* address -> physical, bytes */

/* Has the program bound memory to a multicast object? Which, and for how long, is not followed here: what is given up
 * from then on may stay. */
static bool binds_memory;

static struct physical *find(struct table *table, uint64_t key) {
  struct table_entry entry;
  return table_get(table, key, &entry) ? entry.owner : NULL;
}

/* Changes the counts; the caller holds the lock. The driver may give out a released handle's number again while the
 * memory is still mapped. */
static void change(struct physical *physical, int references, int mapped) {
  struct table_entry ignored;
  physical->references += references;
  physical->mappings += mapped;
  if (references < 0 && physical->references == 0)
    table_take(&handles, physical->handle, &ignored);
  if (physical->references > 0 || physical->mappings > 0)
    return;
  if (physical->may_stay || __atomic_load_n(&binds_memory, __ATOMIC_RELAXED))
    overhead_ask_again(physical->device);
  if (physical->is_on_host)
    host_memory_release(physical->device, physical->bytes);
  else
    memory_release(physical->device, physical->bytes);
  free(physical);
}

static bool remember(const struct physical *kind, uint64_t handle) {
  struct physical *physical = malloc(sizeof *physical);
  if (physical == NULL)
    return false;
  *physical = *kind;
  physical->handle = handle;
  physical->references = 1;
  if (table_put(&handles, (struct table_entry){.key = handle, .bytes = kind->bytes, .owner = physical}))
    return true;
  free(physical);
  return false;
}

static CUresult create(CUmemGenericAllocationHandle *handle, size_t size, const CUmemAllocationProp *properties,
                       unsigned long long flags, const struct physical *kind) {
  CUresult result = real.cuMemCreate(handle, size, properties, flags);
  if (result == CUDA_SUCCESS && !remember(kind, *handle)) {
    real.cuMemRelease(*handle); /* no host memory to remember it by */
    result = CUDA_ERROR_OUT_OF_MEMORY;
  }
  return result;
}

/* Past the device's share. The program maps it, and lets the device access it, like what it asked for. */
static CUresult create_on_host(CUmemGenericAllocationHandle *handle, size_t size, CUmemAllocationProp properties,
                               unsigned long long flags, struct device *device) {
  struct physical kind = {.device = device, .is_on_host = true, .bytes = size};
  if (!host_memory_reserve_physical(device, size, &properties))
    return memory_refuse(device, size);
  CUresult result = create(handle, size, &properties, flags, &kind);
  if (result != CUDA_SUCCESS && properties.requestedHandleTypes != CU_MEM_HANDLE_TYPE_NONE) {
    properties.requestedHandleTypes = CU_MEM_HANDLE_TYPE_NONE; /* not every type of the device's can be the host's */
    result = create(handle, size, &properties, flags, &kind);
  }
  if (result == CUDA_SUCCESS)
    return CUDA_SUCCESS;
  host_memory_release(device, size);
  return memory_refuse(device, size);
}

HOOK CUresult cuMemCreate(CUmemGenericAllocationHandle *handle, size_t size, const CUmemAllocationProp *properties,
                          unsigned long long flags) {
  bool limited = process_is_limited();
  bool on_device = properties != NULL && properties->location.type == CU_MEM_LOCATION_TYPE_DEVICE;
  if (!limited || !on_device)
    return real.cuMemCreate(handle, size, properties, flags);
  struct physical kind = {.device = device_of_ordinal(properties->location.id),
                          .bytes = ledger_driver_size(size),
                          .may_stay = properties->allocFlags.usage & CU_MEM_CREATE_USAGE_TILE_POOL};
  if (!memory_make_room_for_data(kind.device, kind.bytes))
    return create_on_host(handle, size, *properties, flags, kind.device);
  CUresult result = create(handle, size, properties, flags, &kind);
  memory_commit(kind.device, kind.bytes, result == CUDA_SUCCESS ? kind.bytes : 0);
  if (result == CUDA_ERROR_OUT_OF_MEMORY && memory_may_be_served(kind.device))
    result = create_on_host(handle, size, *properties, flags, kind.device);
  return result;
}

/* The count goes first and comes back on an error: once the driver has the handle back, it may give it out again. */
HOOK CUresult cuMemRelease(CUmemGenericAllocationHandle handle) {
  if (!process_is_limited())
    return real.cuMemRelease(handle);
  pthread_mutex_lock(&lock);
  struct physical *physical = find(&handles, handle);
  struct table_entry ignored;
  if (physical != NULL) {
    physical->mappings++; /* keeps it until the driver has answered */
    if (--physical->references == 0)
      table_take(&handles, handle, &ignored);
  }
  pthread_mutex_unlock(&lock);

  memory_begin_leaving(NULL, LEDGER_UNKNOWN_BYTES);
  CUresult result = real.cuMemRelease(handle);

  pthread_mutex_lock(&lock);
  if (physical != NULL && result != CUDA_SUCCESS && physical->references++ == 0)
    table_put(&handles, (struct table_entry){.key = handle, .bytes = physical->bytes, .owner = physical});
  if (physical != NULL)
    change(physical, 0, -1);
  pthread_mutex_unlock(&lock);
  memory_end_leaving(NULL, LEDGER_UNKNOWN_BYTES);
  return result;
}

HOOK CUresult cuMemRetainAllocationHandle(CUmemGenericAllocationHandle *handle, void *address) {
  bool limited = process_is_limited();
  CUresult result = real.cuMemRetainAllocationHandle(handle, address);
  if (result != CUDA_SUCCESS || !limited)
    return result;
  pthread_mutex_lock(&lock);
  struct physical *physical = find(&handles, *handle);
  if (physical == NULL && (physical = find(&mappings, (uint64_t)(uintptr_t)address)) != NULL) {
    physical->handle = *handle; /* its handle had been released: it has one again */
    table_put(&handles, (struct table_entry){.key = *handle, .bytes = physical->bytes, .owner = physical});
  }
  if (physical != NULL)
    change(physical, 1, 0);
  pthread_mutex_unlock(&lock);
  return result;
}

HOOK CUresult cuMemMap(CUdeviceptr address, size_t size, size_t offset, CUmemGenericAllocationHandle handle,
                       unsigned long long flags) {
  bool limited = process_is_limited();
  CUresult result = real.cuMemMap(address, size, offset, handle, flags);
  if (result != CUDA_SUCCESS || !limited)
    return result;
  pthread_mutex_lock(&lock);
  struct physical *physical = find(&handles, handle);
  if (physical != NULL && table_put(&mappings, (struct table_entry){.key = address, .bytes = size, .owner = physical}))
    change(physical, 0, 1);
  pthread_mutex_unlock(&lock);
  return result;
}

/* A single call may unmap several neighbouring mappings, always whole ones. */
HOOK CUresult cuMemUnmap(CUdeviceptr address, size_t size) {
  if (!process_is_limited())
    return real.cuMemUnmap(address, size);
  memory_begin_leaving(NULL, LEDGER_UNKNOWN_BYTES);
  CUresult result = real.cuMemUnmap(address, size);
  pthread_mutex_lock(&lock);
  struct table_entry entry;
  for (uint64_t done = 0; result == CUDA_SUCCESS && done < size && table_take(&mappings, address + done, &entry);
       done += entry.bytes)
    change(entry.owner, 0, -1);
  pthread_mutex_unlock(&lock);
  memory_end_leaving(NULL, LEDGER_UNKNOWN_BYTES);
  return result;
}

HOOK CUresult cuMemExportToShareableHandle(void *shareable, CUmemGenericAllocationHandle handle,
                                           CUmemAllocationHandleType type, unsigned long long flags) {
  bool limited = process_is_limited();
  CUresult result = real.cuMemExportToShareableHandle(shareable, handle, type, flags);
  if (result != CUDA_SUCCESS || !limited)
    return result;
  process_note_sharing();
  pthread_mutex_lock(&lock);
  struct physical *physical = find(&handles, handle);
  if (physical != NULL)
    physical->may_stay = true;
  pthread_mutex_unlock(&lock);
  return result;
}

HOOK CUresult cuMemImportFromShareableHandle(CUmemGenericAllocationHandle *handle, void *shareable,
                                             CUmemAllocationHandleType type) {
  if (process_is_limited())
    process_note_sharing();
  return real.cuMemImportFromShareableHandle(handle, shareable, type);
}

static void note_binding(void) {
  if (process_is_limited())
    __atomic_store_n(&binds_memory, true, __ATOMIC_RELAXED);
}

HOOK CUresult cuMulticastBindMem(CUmemGenericAllocationHandle object, size_t offset,
                                 CUmemGenericAllocationHandle memory, size_t memory_offset, size_t size,
                                 unsigned long long flags) {
  note_binding();
  return real.cuMulticastBindMem(object, offset, memory, memory_offset, size, flags);
}

HOOK CUresult cuMulticastBindAddr(CUmemGenericAllocationHandle object, size_t offset, CUdeviceptr address, size_t size,
                                  unsigned long long flags) {
  note_binding();
  return real.cuMulticastBindAddr(object, offset, address, size, flags);
}

HOOK CUresult cuMulticastBindMem_v2(CUmemGenericAllocationHandle object, CUdevice device, size_t offset,
                                    CUmemGenericAllocationHandle memory, size_t memory_offset, size_t size,
                                    unsigned long long flags) {
  note_binding();
  return real.cuMulticastBindMem_v2(object, device, offset, memory, memory_offset, size, flags);
}

HOOK CUresult cuMulticastBindAddr_v2(CUmemGenericAllocationHandle object, CUdevice device, size_t offset,
                                     CUdeviceptr address, size_t size, unsigned long long flags) {
  note_binding();
  return real.cuMulticastBindAddr_v2(object, device, offset, address, size, flags);
}

static void vmm_forget(void) {
  pthread_mutex_init(&lock, NULL);
  table_abandon(&handles);
  table_abandon(&mappings);
}
PROCESS_IN_CHILD(vmm_forget);
