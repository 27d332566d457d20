/* Plain, pitched and managed allocations, and the view of a device's memory. */
#include "cuda_memory.h"

#include "contexts.h"
#include "cuda_graph_memory.h"
#include "log.h"
#include "process.h"
#include "table.h"

static struct table allocations = TABLE_INITIALIZER;

#define MIB (1024ULL * 1024ULL)
#define SELDOM_NS 100000000LL
#define OFTEN_NS 1000000LL

CUresult memory_refuse(const struct device *device, uint64_t bytes) {
  static int said;
  if (device->number < 0) /* has been explained when it was met */
    return CUDA_ERROR_OUT_OF_MEMORY;
  __atomic_add_fetch(&device_shared(device)->refusals, 1, __ATOMIC_RELAXED);
  log_once(&said, LOG_WARNING,
           "out of GPU memory on %s: %llu MiB asked for, %llu MiB in use, limit %llu MiB (said once per process)",
           device->uuid, (unsigned long long)(bytes + MIB - 1) / MIB,
           (unsigned long long)device_used_bytes(device) / MIB,
           (unsigned long long)device_limits(device).memory_bytes / MIB);
  return CUDA_ERROR_OUT_OF_MEMORY;
}

/* Overhead grows while a program runs, and NVML takes 36 us to tell: so it is asked seldom while there is plenty, and
 * often in the last quarter of the limit. */
static int64_t correction_age_ns(const struct device *device, uint64_t bytes, uint64_t limit_bytes) {
  uint64_t used_bytes = ledger_used_at_most(process_ledger(), device->number);
  bool plenty = bytes < limit_bytes && used_bytes < (limit_bytes - bytes) / 4 * 3;
  return plenty ? SELDOM_NS : OFTEN_NS;
}

/* Pending from before it is counted until the driver has answered. */
static bool reserve(struct device *device, uint64_t bytes, uint64_t limit_bytes) {
  __atomic_add_fetch(&device->pending_bytes, bytes, __ATOMIC_SEQ_CST);
  if (ledger_reserve(process_ledger(), device->number, bytes, limit_bytes))
    return true;
  __atomic_sub_fetch(&device->pending_bytes, bytes, __ATOMIC_SEQ_CST);
  return false;
}

bool memory_try_reserve(struct device *device, uint64_t bytes) {
  if (device->number < 0)
    return false;
  uint64_t limit_bytes = device_limits(device).memory_bytes;
  device_correct_overhead(device, correction_age_ns(device, bytes, limit_bytes));
  return reserve(device, bytes, limit_bytes);
}

CUresult memory_reserve(struct device *device, uint64_t bytes) {
  if (device == NULL || memory_try_reserve(device, bytes))
    return CUDA_SUCCESS;
  /* Before a refusal everything is made exact: memory idle in pools goes back, and NVML has the last word. */
  pools_settle(device, POOLS_TRIM);
  device_correct_overhead(device, 0);
  bool fits = device->number >= 0 && reserve(device, bytes, device_limits(device).memory_bytes);
  return fits ? CUDA_SUCCESS : memory_refuse(device, bytes);
}

void memory_commit(struct device *device, uint64_t reserved_bytes, uint64_t actual_bytes) {
  if (device == NULL)
    return;
  if (actual_bytes > reserved_bytes)
    memory_add(device, actual_bytes - reserved_bytes);
  else
    memory_release(device, reserved_bytes - actual_bytes);
  __atomic_sub_fetch(&device->pending_bytes, reserved_bytes, __ATOMIC_SEQ_CST);
}

void memory_cancel(struct device *device, uint64_t reserved_bytes) {
  memory_commit(device, reserved_bytes, 0);
}

bool memory_is_over(const struct device *device) {
  return device_used_bytes(device) > device_limits(device).memory_bytes;
}

void memory_add(struct device *device, uint64_t bytes) {
  if (device != NULL && device->number >= 0)
    ledger_add(process_ledger(), device->number, bytes);
}

void memory_release(struct device *device, uint64_t bytes) {
  if (device != NULL && device->number >= 0)
    ledger_release(process_ledger(), device->number, bytes);
}

/* ---- allocation ---------------------------------------------------------------------------------------------- */

static void count_managed(const struct table_entry *entry, void (*count)(const struct ledger *, int, uint64_t)) {
  const struct device *device = entry->owner;
  if (entry->managed && device->number >= 0)
    count(process_ledger(), device->number, entry->bytes);
}

/* An allocation under way. */
struct attempt {
  struct device *device; /* NULL: nothing is counted */
  CUcontext context;
  uint64_t reserved_bytes;
};

static CUresult begin(struct attempt *attempt, uint64_t bytes) {
  *attempt = (struct attempt){0};
  if (!process_is_limited())
    return CUDA_SUCCESS;
  *attempt = (struct attempt){.device = device_of_current_context(), .reserved_bytes = bytes};
  real.cuCtxGetCurrent(&attempt->context);
  return memory_reserve(attempt->device, bytes);
}

/* After the driver's answer: remembers the allocation, or takes back what was reserved for it. */
static CUresult end(const struct attempt *attempt, CUresult result, struct table_entry entry) {
  if (attempt->device == NULL)
    return result;
  entry.owner = attempt->device;
  entry.context = attempt->context;
  if (result == CUDA_SUCCESS && !table_put(&allocations, entry)) {
    real.cuMemFree_v2(entry.key); /* no host memory to remember it by */
    result = CUDA_ERROR_OUT_OF_MEMORY;
  }
  if (result != CUDA_SUCCESS) {
    memory_cancel(attempt->device, attempt->reserved_bytes);
    return result;
  }
  memory_commit(attempt->device, attempt->reserved_bytes, entry.bytes);
  count_managed(&entry, ledger_add_managed);
  return CUDA_SUCCESS;
}

HOOK CUresult cuMemAlloc_v2(CUdeviceptr *pointer, size_t size) {
  struct attempt attempt;
  CUresult result = begin(&attempt, ledger_driver_size(size));
  if (result != CUDA_SUCCESS)
    return result;
  result = real.cuMemAlloc_v2(pointer, size);
  struct table_entry entry = {.bytes = attempt.reserved_bytes};
  if (result == CUDA_SUCCESS)
    entry.key = *pointer;
  return end(&attempt, result, entry);
}

HOOK CUresult cuMemAllocManaged(CUdeviceptr *pointer, size_t size, unsigned int flags) {
  struct attempt attempt;
  CUresult result = begin(&attempt, ledger_driver_size(size));
  if (result != CUDA_SUCCESS)
    return result;
  result = real.cuMemAllocManaged(pointer, size, flags);
  struct table_entry entry = {.bytes = attempt.reserved_bytes, .managed = true};
  if (result == CUDA_SUCCESS)
    entry.key = *pointer;
  return end(&attempt, result, entry);
}

/* Rows are padded by the driver: by how much shows only afterwards. */
static uint64_t pitched_bytes(uint64_t pitch, uint64_t height) {
  uint64_t bytes;
  return __builtin_mul_overflow(pitch, height, &bytes) ? UINT64_MAX : ledger_driver_size(bytes);
}

static uint64_t expected_pitch(uint64_t width) {
  return width <= UINT64_MAX - 511 ? (width + 511) / 512 * 512 : width;
}

HOOK CUresult cuMemAllocPitch_v2(CUdeviceptr *pointer, size_t *pitch, size_t width, size_t height,
                                 unsigned int element_size) {
  struct attempt attempt;
  CUresult result = begin(&attempt, pitched_bytes(expected_pitch(width), height));
  if (result != CUDA_SUCCESS)
    return result;
  result = real.cuMemAllocPitch_v2(pointer, pitch, width, height, element_size);
  struct table_entry entry = {0};
  if (result == CUDA_SUCCESS)
    entry = (struct table_entry){.key = *pointer, .bytes = pitched_bytes(*pitch, height)};
  return end(&attempt, result, entry);
}

/* The calls of CUDA before 3.2, with 32-bit sizes and pointers. */

HOOK CUresult cuMemAlloc(CUdeviceptr_v1 *pointer, unsigned int size) {
  struct attempt attempt;
  CUresult result = begin(&attempt, ledger_driver_size(size));
  if (result != CUDA_SUCCESS)
    return result;
  result = real.cuMemAlloc(pointer, size);
  struct table_entry entry = {.bytes = attempt.reserved_bytes};
  if (result == CUDA_SUCCESS)
    entry.key = *pointer;
  return end(&attempt, result, entry);
}

HOOK CUresult cuMemAllocPitch(CUdeviceptr_v1 *pointer, unsigned int *pitch, unsigned int width, unsigned int height,
                              unsigned int element_size) {
  struct attempt attempt;
  CUresult result = begin(&attempt, pitched_bytes(expected_pitch(width), height));
  if (result != CUDA_SUCCESS)
    return result;
  result = real.cuMemAllocPitch(pointer, pitch, width, height, element_size);
  struct table_entry entry = {0};
  if (result == CUDA_SUCCESS)
    entry = (struct table_entry){.key = *pointer, .bytes = pitched_bytes(*pitch, height)};
  return end(&attempt, result, entry);
}

static void release_entry(const struct table_entry *entry) {
  memory_release(entry->owner, entry->bytes);
  count_managed(entry, ledger_release_managed);
}

void memory_forget_context(struct device *device, CUcontext context) {
  if (device == NULL || context == NULL)
    return;
  table_take_context(&allocations, context, release_entry);
  pools_settle(device, POOLS_REREAD);
  contexts_ended(device, context);
  device_correct_overhead(device, 0);
}

/* The entry goes first, since the address may be another allocation's as soon as the driver has it back; the bytes go
 * last, since they are the driver's until it answers. A pointer that we do not know is the driver's to judge. */
static bool begin_free(uint64_t pointer, struct table_entry *entry) {
  return process_is_limited() && table_take(&allocations, pointer, entry);
}

static CUresult end_free(bool known, const struct table_entry *entry, CUresult result) {
  if (known && result == CUDA_SUCCESS)
    release_entry(entry);
  else if (known)
    table_put(&allocations, *entry);
  return result;
}

HOOK CUresult cuMemFree_v2(CUdeviceptr pointer) {
  struct table_entry entry;
  bool known = begin_free(pointer, &entry);
  return end_free(known, &entry, real.cuMemFree_v2(pointer));
}

HOOK CUresult cuMemFree(CUdeviceptr_v1 pointer) {
  struct table_entry entry;
  bool known = begin_free(pointer, &entry);
  return end_free(known, &entry, real.cuMemFree(pointer));
}

/* A plain allocation may be freed in stream order, too. */
HOOK CUresult cuMemFreeAsync(CUdeviceptr pointer, CUstream stream) {
  struct table_entry entry;
  bool known = begin_free(pointer, &entry);
  return end_free(known, &entry, real.cuMemFreeAsync(pointer, stream));
}

HOOK CUresult cuMemFreeAsync_ptsz(CUdeviceptr pointer, CUstream stream) {
  struct table_entry entry;
  bool known = begin_free(pointer, &entry);
  return end_free(known, &entry, real.cuMemFreeAsync_ptsz(pointer, stream));
}

/* ---- the view ------------------------------------------------------------------------------------------------ */

static uint64_t min(uint64_t a, uint64_t b) {
  return a < b ? a : b;
}

struct view {
  uint64_t free_bytes;
  uint64_t total_bytes;
};

/* Narrows what the driver says of the current device to what the container may have. */
static void narrow(struct view *view) {
  struct device *device = device_of_current_context();
  if (device == NULL)
    return;
  pools_settle(device, POOLS_REREAD);
  device_correct_overhead(device, SELDOM_NS);
  view->total_bytes = min(view->total_bytes, device_limits(device).memory_bytes);
  uint64_t used_bytes = device_used_bytes(device);
  view->free_bytes = min(view->free_bytes, view->total_bytes > used_bytes ? view->total_bytes - used_bytes : 0);
}

HOOK CUresult cuMemGetInfo_v2(size_t *free_bytes, size_t *total_bytes) {
  bool limited = process_is_limited();
  CUresult result = real.cuMemGetInfo_v2(free_bytes, total_bytes);
  if (result != CUDA_SUCCESS || !limited)
    return result;
  struct view view = {free_bytes ? *free_bytes : 0, total_bytes ? *total_bytes : UINT64_MAX};
  narrow(&view);
  if (free_bytes != NULL)
    *free_bytes = view.free_bytes;
  if (total_bytes != NULL)
    *total_bytes = view.total_bytes;
  return result;
}

HOOK CUresult cuMemGetInfo(unsigned int *free_bytes, unsigned int *total_bytes) {
  bool limited = process_is_limited();
  CUresult result = real.cuMemGetInfo(free_bytes, total_bytes);
  if (result != CUDA_SUCCESS || !limited)
    return result;
  struct view view = {free_bytes ? *free_bytes : 0, total_bytes ? *total_bytes : UINT64_MAX};
  narrow(&view);
  if (free_bytes != NULL)
    *free_bytes = (unsigned)view.free_bytes;
  if (total_bytes != NULL)
    *total_bytes = (unsigned)view.total_bytes;
  return result;
}

static uint64_t narrow_total(uint64_t bytes, CUdevice ordinal) {
  struct device *device = device_of_ordinal(ordinal);
  return device == NULL ? bytes : min(bytes, device_limits(device).memory_bytes);
}

HOOK CUresult cuDeviceTotalMem_v2(size_t *bytes, CUdevice ordinal) {
  bool limited = process_is_limited();
  CUresult result = real.cuDeviceTotalMem_v2(bytes, ordinal);
  if (result == CUDA_SUCCESS && bytes != NULL && limited)
    *bytes = narrow_total(*bytes, ordinal);
  return result;
}

HOOK CUresult cuDeviceTotalMem(unsigned int *bytes, CUdevice ordinal) {
  bool limited = process_is_limited();
  CUresult result = real.cuDeviceTotalMem(bytes, ordinal);
  if (result == CUDA_SUCCESS && bytes != NULL && limited)
    *bytes = (unsigned)narrow_total(*bytes, ordinal);
  return result;
}

void memory_forget(void) {
  table_abandon(&allocations);
  pools_forget();
  vmm_forget();
  graph_memory_forget();
}
