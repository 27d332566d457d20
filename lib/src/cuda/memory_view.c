#include "cuda/memory_view.h"
#include "cuda/overhead.h"

#include "cuda/memory.h"
#include "device/process.h"

static uint64_t min(uint64_t a, uint64_t b) {
  return a < b ? a : b;
}

/* A program that only looks, such as nvidia-smi, has nothing to settle, and needs no slot. */
static void settle(struct device *device) {
  if (!process_has_slot())
    return;
  pools_settle(device, POOLS_REREAD);
  overhead_correct(device, OVERHEAD_SELDOM_NS);
}

struct memory_view memory_view(struct device *device, uint64_t driver_total_bytes, uint64_t driver_free_bytes) {
  settle(device);
  struct limits limits = device_limits(device);
  uint64_t total_bytes = memory_view_total(limits, driver_total_bytes);
  uint64_t used_bytes = min(total_bytes, device_used_bytes(device) + device_host_bytes(device));
  uint64_t free_bytes = total_bytes - used_bytes;
  return (struct memory_view){
      .total_bytes = total_bytes,
      .free_bytes = limits_oversubscribe(limits) ? free_bytes : min(driver_free_bytes, free_bytes),
      .used_bytes = used_bytes,
  };
}

uint64_t memory_view_total(struct limits limits, uint64_t driver_total_bytes) {
  return limits_oversubscribe(limits) ? limits.virtual_bytes : min(driver_total_bytes, limits.memory_bytes);
}
