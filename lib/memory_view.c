#include "memory_view.h"

#include "cuda_memory.h"
#include "process.h"

static uint64_t min(uint64_t a, uint64_t b) {
  return a < b ? a : b;
}

/* A program that only looks, such as nvidia-smi, has nothing to settle, and needs no slot. */
static void settle(struct device *device) {
  if (!process_has_slot())
    return;
  pools_settle(device, POOLS_REREAD);
  device_correct_overhead(device, DEVICE_SELDOM_NS);
}

struct memory_view memory_view(struct device *device, uint64_t driver_total_bytes, uint64_t driver_free_bytes) {
  settle(device);
  uint64_t total_bytes = min(driver_total_bytes, device_limits(device).memory_bytes);
  uint64_t used_bytes = min(total_bytes, device_used_bytes(device));
  return (struct memory_view){
      .total_bytes = total_bytes,
      .free_bytes = min(driver_free_bytes, total_bytes - used_bytes),
      .used_bytes = used_bytes,
  };
}
