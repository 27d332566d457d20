/* Room for memory: reserved before the driver is asked, and refused past the limit. */
#include "cuda_memory.h"

#include "log.h"
#include "process.h"

#define MIB (1024ULL * 1024ULL)

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

static bool reserve(const struct device *device, uint64_t bytes, uint64_t limit_bytes) {
  return device->number >= 0 && ledger_reserve(process_ledger(), device->number, bytes, limit_bytes) != LEDGER_FULL;
}

#define LITTLE_BYTES (32 * MIB)

/* Has so much been allocated since NVML was asked that it could pass the limit together with a module that was loaded
 * meanwhile? */
static bool has_grown_much(const struct device *device, uint64_t used_bytes, uint64_t limit_bytes) {
  uint64_t asked_bytes = __atomic_load_n(&device->used_when_asked_bytes, __ATOMIC_RELAXED);
  uint64_t grown_bytes = used_bytes > asked_bytes ? used_bytes - asked_bytes : 0;
  return grown_bytes > LITTLE_BYTES && grown_bytes > (limit_bytes - used_bytes) / 8;
}

/* Overhead grows while a program runs, and NVML takes 36 us to tell: so it is asked seldom while there is plenty, often
 * in the last quarter of the limit, and at once when much has been allocated since. */
static int64_t correction_age_ns(const struct device *device, uint64_t used_bytes, uint64_t limit_bytes) {
  if (used_bytes <= limit_bytes && has_grown_much(device, used_bytes, limit_bytes))
    return 0;
  return used_bytes < limit_bytes / 4 * 3 ? DEVICE_SELDOM_NS : DEVICE_OFTEN_NS;
}

/* While NVML is asked nothing of ours may be pending, which would blur the answer. */
bool memory_try_reserve(struct device *device, uint64_t bytes) {
  if (device->number < 0)
    return false;
  uint64_t limit_bytes = device_limits(device).memory_bytes;
  uint64_t used_bytes = ledger_reserve(process_ledger(), device->number, bytes, limit_bytes);
  int64_t age_ns = correction_age_ns(device, used_bytes, limit_bytes);
  if (age_ns == DEVICE_SELDOM_NS) {
    device_correct_overhead(device, age_ns);
    return true;
  }
  if (!device_is_to_be_corrected(device, age_ns))
    return used_bytes != LEDGER_FULL;
  if (used_bytes != LEDGER_FULL)
    memory_cancel(device, bytes);
  device_correct_overhead(device, 0);
  return reserve(device, bytes, limit_bytes);
}

CUresult memory_reserve(struct device *device, uint64_t bytes) {
  if (device == NULL || memory_try_reserve(device, bytes))
    return CUDA_SUCCESS;
  /* Before a refusal everything is made exact: memory idle in pools goes back, and NVML has the last word. */
  pools_settle(device, POOLS_TRIM);
  device_correct_overhead(device, 0);
  return reserve(device, bytes, device_limits(device).memory_bytes) ? CUDA_SUCCESS : memory_refuse(device, bytes);
}

void memory_commit(struct device *device, uint64_t reserved_bytes, uint64_t actual_bytes) {
  if (device != NULL && device->number >= 0)
    ledger_settle(process_ledger(), device->number, reserved_bytes, actual_bytes);
}

void memory_cancel(struct device *device, uint64_t reserved_bytes) {
  memory_commit(device, reserved_bytes, 0);
}

bool memory_is_over(const struct device *device) {
  return device_used_bytes(device) > device_limits(device).memory_bytes;
}

#define COUNT(name, count)                                                                                             \
  void name(struct device *device, uint64_t bytes) {                                                                   \
    if (device != NULL && device->number >= 0 && bytes > 0)                                                            \
      count(process_ledger(), device->number, bytes);                                                                  \
  }

COUNT(memory_add, ledger_add)
COUNT(memory_release, ledger_release)
COUNT(memory_add_managed, ledger_add_managed)
COUNT(memory_release_managed, ledger_release_managed)
