#include "cuda/overhead.h"

#include "base/clock.h"
#include "base/compiler.h"
#include "base/log.h"
#include "cuda/memory.h"
#include "cuda/memory_pools.h"
#include "device/nvml_processes.h"
#include "device/process.h"
#include "memory/ledger_totals.h"
#include "memory/table.h"

#include <unistd.h>

static struct table contexts = TABLE_INITIALIZER;

HOT bool overhead_is_due(const struct device *device, int64_t max_age_ns) {
  if (device->number < 0 || !device->in_nvml)
    return false;
  int64_t corrected_ns = __atomic_load_n(&device->corrected_ns, __ATOMIC_RELAXED);
  if (max_age_ns == 0 || corrected_ns == 0)
    return true;
  int64_t now_ns = max_age_ns >= OVERHEAD_SELDOM_NS ? clock_coarse_ns() : clock_now_ns();
  return now_ns - corrected_ns >= max_age_ns;
}

static uint64_t held_bytes(const void *running, uint32_t pid) {
  uint64_t bytes;
  nvml_processes_find(running, pid, &bytes);
  return bytes;
}

/* Threads may do this at once: any of their answers will do. */
static void note_uncounted(struct device *device, struct ledger_range uncounted) {
  __atomic_store_n(&device->uncounted.least_bytes, uncounted.least_bytes, __ATOMIC_RELAXED);
  __atomic_store_n(&device->uncounted.most_bytes, uncounted.most_bytes, __ATOMIC_RELAXED);
}

/* Pools are reread after NVML has answered: what they had given back by then is not to be taken for overhead that is
 * gone. */
static COLD bool correct(struct device *device, enum ledger_cause cause, uint64_t answered_bytes) {
  device_follow(device);
  __atomic_store_n(&device->corrected_ns, clock_now_ns(), __ATOMIC_RELAXED);
  struct ledger_snapshot before = ledger_snapshot(process_ledger(), device->number);
  struct nvml_processes running;
  if (!nvml_processes_ask(NVML_COMPUTE_PROCESSES, device->nvml, &running)) {
    device_not_enforced(device, VGPU_NOT_ENFORCED_MEMORY);
    return false;
  }
  uint64_t bytes;
  bool listed = nvml_processes_find(&running, (unsigned)getpid(), &bytes);
  for (int level = 0; level < process_levels(); level++) {
    uint64_t elsewhere_bytes = ledger_uncounted(process_ledger_at(level), device->number, held_bytes, &running);
    __atomic_store_n(&device->uncounted_elsewhere_bytes[level], elsewhere_bytes, __ATOMIC_RELAXED);
  }
  nvml_processes_done(&running);
  __atomic_store_n(&device->is_listed, listed, __ATOMIC_RELAXED);
  uint64_t surplus_bytes = pools_settle(device, POOLS_REREAD) ? 0 : LEDGER_UNKNOWN_BYTES;
  memory_begin_leaving(device, surplus_bytes);
  note_uncounted(device, ledger_correct(process_ledger(), device->number, &before, bytes, cause, answered_bytes));
  memory_end_leaving(device, surplus_bytes);
  uint64_t used = ledger_used_of_late(process_ledger(), device->number);
  __atomic_store_n(&device->used_when_asked_bytes, used, __ATOMIC_RELAXED);
  return true;
}

HOT bool overhead_correct(struct device *device, int64_t max_age_ns) {
  return overhead_is_due(device, max_age_ns) && correct(device, LEDGER_LOOKED, 0);
}

bool overhead_count_made(struct device *device, uint64_t reserved_bytes) {
  return overhead_is_due(device, 0) && correct(device, LEDGER_MADE, reserved_bytes);
}

void overhead_ask_again(struct device *device) {
  if (device != NULL)
    __atomic_store_n(&device->corrected_ns, 0, __ATOMIC_SEQ_CST);
}

struct ledger_range overhead_uncounted(const struct device *device) {
  return (struct ledger_range){__atomic_load_n(&device->uncounted.least_bytes, __ATOMIC_RELAXED),
                               __atomic_load_n(&device->uncounted.most_bytes, __ATOMIC_RELAXED)};
}

bool overhead_is_blurred(const struct device *device) {
  struct ledger_range uncounted = overhead_uncounted(device);
  return uncounted.most_bytes > uncounted.least_bytes;
}

/* ---- contexts ---------------------------------------------------------------------------------------------------- */

/* Drivers of before PIDs were translated list processes by the host's PIDs, which nobody in a container knows. */
static void check_is_listed(const struct device *device) {
  static int said;
  if (!device->in_nvml || __atomic_load_n(&device->is_listed, __ATOMIC_RELAXED))
    return;
  device_not_enforced(device, VGPU_NOT_ENFORCED_MEMORY);
  log_once(
      &said, LOG_WARNING,
      "NVML does not list this process on %s; memory that the driver takes for contexts and modules is not counted",
      device->uuid);
}

/* A context's own bytes are known more exactly than the overhead while other threads allocate. */
static bool is_less_than_contexts(const struct device *device) {
  struct vgpu_device_usage own = {0};
  if (device->number >= 0)
    own = ledger_own_usage(process_ledger(), device->number);
  return own.overhead_bytes < own.context_bytes;
}

void overhead_context_made(struct device *device, CUcontext context, uint64_t before_bytes) {
  check_is_listed(device);
  uint64_t now_bytes = overhead_uncounted(device).least_bytes;
  struct table_entry entry = {.key = (uintptr_t)context, .bytes = subtract_saturating(now_bytes, before_bytes)};
  if (device->number >= 0 && table_put(&contexts, entry))
    ledger_add_context(process_ledger(), device->number, entry.bytes);
  if (is_less_than_contexts(device))
    overhead_correct(device, 0);
}

void overhead_context_ended(const struct device *device, CUcontext context) {
  struct table_entry entry;
  if (device->number >= 0 && table_take(&contexts, (uintptr_t)context, &entry))
    ledger_release_context(process_ledger(), device->number, entry.bytes);
}

static void overhead_forget(void) {
  table_abandon(&contexts);
}
PROCESS_IN_CHILD(overhead_forget);
