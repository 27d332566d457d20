#include "cuda/host_memory.h"

#include "base/log.h"
#include "cuda/memory.h"
#include "cuda/reserve.h"
#include "device/devices.h"
#include "device/process.h"

#include <pthread.h>
#include <string.h>

#define HOST_PAGE 4096ULL
#define MOST_WAITING 256

static bool is_possible(CUdevice ordinal) {
  static int said;
  int possible = 0;
  real.cuDeviceGetAttribute(&possible, CU_DEVICE_ATTRIBUTE_CONCURRENT_MANAGED_ACCESS, ordinal);
  if (!possible)
    log_once(&said, LOG_WARNING,
             "this GPU cannot use memory of the host in place of its own: nothing is oversubscribed");
  return possible;
}

static bool reserve(const struct device *device, uint64_t bytes) {
  uint64_t limits_bytes[VGPU_MAX_LEVELS];
  for (int level = 0; level < process_levels(); level++)
    limits_bytes[level] = device_limits_at(device, level).virtual_bytes;
  return memory_may_be_served(device) && ledger_reserve_host(process_ledger(), device->number, bytes, limits_bytes);
}

void host_memory_release(const struct device *device, uint64_t bytes) {
  ledger_release_host(process_ledger(), device->number, bytes);
}

static CUresult keep_on_host(CUdeviceptr pointer, size_t size, CUdevice ordinal) {
  CUmemLocation host = {.type = CU_MEM_LOCATION_TYPE_HOST};
  CUmemLocation device = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = ordinal};
  CUresult result = real.cuMemAdvise_v2(pointer, size, CU_MEM_ADVISE_SET_PREFERRED_LOCATION, host);
  return result != CUDA_SUCCESS ? result : real.cuMemAdvise_v2(pointer, size, CU_MEM_ADVISE_SET_ACCESSED_BY, device);
}

/* Memory that would not stay on the host is none. */
static CUresult make(CUdeviceptr *pointer, size_t size, unsigned flags, CUdevice ordinal) {
  static int said;
  CUresult result = real.cuMemAllocManaged(pointer, size, flags);
  if (result != CUDA_SUCCESS)
    return result;
  result = keep_on_host(*pointer, size, ordinal);
  if (result == CUDA_SUCCESS)
    return CUDA_SUCCESS;
  log_once(&said, LOG_WARNING, "the driver does not keep memory on the host (error %d): nothing is oversubscribed",
           (int)result);
  real.cuMemFree_v2(*pointer);
  return CUDA_ERROR_OUT_OF_MEMORY;
}

CUresult host_memory_take(const struct current *current, size_t size, unsigned flags, CUdeviceptr *pointer,
                          uint64_t *bytes) {
  host_memory_collect();
  *bytes = size <= SIZE_MAX - HOST_PAGE ? (size + HOST_PAGE - 1) / HOST_PAGE * HOST_PAGE : size;
  if (!reserve(current->device, *bytes))
    return memory_refuse(current->device, size);
  CUresult result = is_possible(current->ordinal) ? make(pointer, size, flags, current->ordinal)
                                                  : memory_refuse(current->device, size);
  if (result != CUDA_SUCCESS)
    host_memory_release(current->device, *bytes);
  return result;
}

bool host_memory_reserve_physical(const struct device *device, uint64_t bytes, CUmemAllocationProp *properties) {
  if (!reserve(device, bytes))
    return false;
  properties->location = (CUmemLocation){.type = CU_MEM_LOCATION_TYPE_HOST};
  memset(&properties->allocFlags, 0, sizeof properties->allocFlags);
  return true;
}

/* ---- in the order of a stream ---------------------------------------------------------------------------------- */

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER; /* never held across a driver call */
static struct waiting {
  struct host_memory memory;
  CUevent event; /* done when the stream has come to the point where it is free */
} waiting[MOST_WAITING];
static int waiting_count;

static bool put(const struct waiting *each) {
  pthread_mutex_lock(&lock);
  bool room = waiting_count < MOST_WAITING;
  if (room)
    waiting[waiting_count] = *each;
  if (room)
    __atomic_store_n(&waiting_count, waiting_count + 1, __ATOMIC_RELAXED);
  pthread_mutex_unlock(&lock);
  return room;
}

/* Takes the entry at `place`; false past the end. The last one moves there. */
static bool take(int place, struct waiting *each) {
  pthread_mutex_lock(&lock);
  bool any = place < waiting_count;
  if (any) {
    *each = waiting[place];
    waiting[place] = waiting[waiting_count - 1];
    __atomic_store_n(&waiting_count, waiting_count - 1, __ATOMIC_RELAXED);
  }
  pthread_mutex_unlock(&lock);
  return any;
}

static CUresult free_now(const struct host_memory *memory) {
  CUresult result = real.cuMemFree_v2(memory->pointer);
  if (result == CUDA_SUCCESS)
    host_memory_release(memory->device, memory->bytes);
  return result;
}

static bool put_in_order(const struct host_memory *memory, CUstream stream) {
  struct waiting each = {.memory = *memory};
  if (real.cuEventCreate(&each.event, CU_EVENT_DISABLE_TIMING) != CUDA_SUCCESS)
    return false;
  if (real.cuEventRecord(each.event, stream) == CUDA_SUCCESS && put(&each))
    return true;
  real.cuEventDestroy_v2(each.event);
  return false;
}

CUresult host_memory_free_in_order(const struct host_memory *memory, CUstream stream) {
  host_memory_collect();
  if (put_in_order(memory, stream))
    return CUDA_SUCCESS;
  CUresult result = real.cuStreamSynchronize(stream);
  return result == CUDA_SUCCESS ? free_now(memory) : result;
}

void host_memory_collect(void) {
  if (__atomic_load_n(&waiting_count, __ATOMIC_RELAXED) == 0)
    return;
  CUstreamCaptureMode mode = capture_relax();
  CUcontext context = device_current().context;
  struct waiting each;
  for (int place = __atomic_load_n(&waiting_count, __ATOMIC_RELAXED) - 1; place >= 0; place--) {
    if (!take(place, &each))
      continue;
    if (each.memory.context == context && real.cuEventQuery(each.event) != CUDA_ERROR_NOT_READY &&
        free_now(&each.memory) == CUDA_SUCCESS)
      real.cuEventDestroy_v2(each.event);
    else
      put(&each);
  }
  capture_restore(mode);
}

void host_memory_forget_context(CUcontext context) {
  struct waiting each;
  for (int place = __atomic_load_n(&waiting_count, __ATOMIC_RELAXED) - 1; place >= 0; place--) {
    if (!take(place, &each))
      continue;
    if (each.memory.context == context)
      host_memory_release(each.memory.device, each.memory.bytes);
    else
      put(&each);
  }
}

static void host_memory_forget(void) {
  pthread_mutex_init(&lock, NULL);
  waiting_count = 0;
}
PROCESS_IN_CHILD(host_memory_forget);
