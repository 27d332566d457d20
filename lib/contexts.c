#include "contexts.h"

#include "log.h"
#include "process.h"
#include "table.h"

static struct table contexts = TABLE_INITIALIZER;

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

void contexts_made(struct device *device, CUcontext context, uint64_t before_bytes) {
  device_count_made(device, 0);
  check_is_listed(device);
  uint64_t now_bytes = device_uncounted(device).least_bytes;
  struct table_entry entry = {.key = (uintptr_t)context,
                              .bytes = now_bytes > before_bytes ? now_bytes - before_bytes : 0};
  if (device->number >= 0 && table_put(&contexts, entry))
    ledger_add_context(process_ledger(), device->number, entry.bytes);
}

void contexts_ended(const struct device *device, CUcontext context) {
  struct table_entry entry;
  if (device->number >= 0 && table_take(&contexts, (uintptr_t)context, &entry))
    ledger_release_context(process_ledger(), device->number, entry.bytes);
}

void contexts_forget(void) {
  table_abandon(&contexts);
}
