/* The size of a device and of its free memory, as the program sees them. */
#include "cuda/memory_info.h"
#include "cuda/memory.h"
#include "cuda/memory_pools.h"
#include "cuda/overhead.h"
#include "device/process.h"

struct view {
  uint64_t free_bytes;
  uint64_t total_bytes;
};

/* Narrows what the driver says of the current device to what the container may have. */
static void narrow(struct view *view) {
  struct device *device = device_of_current_context();
  if (device == NULL)
    return;
  struct memory_view narrowed = memory_view(device, view->total_bytes, view->free_bytes);
  *view = (struct view){narrowed.free_bytes, narrowed.total_bytes};
}

static unsigned clamp(uint64_t bytes) {
  return bytes < UINT32_MAX ? (unsigned)bytes : UINT32_MAX;
}

HOOK CUresult cuMemGetInfo_v2(size_t *free_bytes, size_t *total_bytes) {
  bool limited = process_shows_limits();
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
  bool limited = process_shows_limits();
  CUresult result = real.cuMemGetInfo(free_bytes, total_bytes);
  if (result != CUDA_SUCCESS || !limited)
    return result;
  struct view view = {free_bytes ? *free_bytes : 0, total_bytes ? *total_bytes : UINT64_MAX};
  narrow(&view);
  if (free_bytes != NULL)
    *free_bytes = clamp(view.free_bytes);
  if (total_bytes != NULL)
    *total_bytes = clamp(view.total_bytes);
  return result;
}

static uint64_t narrow_total(uint64_t bytes, CUdevice ordinal) {
  struct device *device = device_of_ordinal(ordinal);
  return device == NULL ? bytes : memory_view_total(device_limits(device), bytes);
}

HOOK CUresult cuDeviceTotalMem_v2(size_t *bytes, CUdevice ordinal) {
  bool limited = process_shows_limits();
  CUresult result = real.cuDeviceTotalMem_v2(bytes, ordinal);
  if (result == CUDA_SUCCESS && bytes != NULL && limited)
    *bytes = narrow_total(*bytes, ordinal);
  return result;
}

HOOK CUresult cuDeviceTotalMem(unsigned int *bytes, CUdevice ordinal) {
  bool limited = process_shows_limits();
  CUresult result = real.cuDeviceTotalMem(bytes, ordinal);
  if (result == CUDA_SUCCESS && bytes != NULL && limited)
    *bytes = clamp(narrow_total(*bytes, ordinal));
  return result;
}

static uint64_t least(uint64_t a, uint64_t b) {
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
  bool is_served = limits_oversubscribe(device_limits(device));
  struct memory_view view = {UINT64_MAX, is_served ? UINT64_MAX : driver_free_bytes, 0};
  for (int level = process_levels() - 1; level >= 0; level--) { /* used is what the own level holds: it comes last */
    struct limits limits = device_limits_at(device, level);
    limits.is_served = is_served;
    uint64_t total_bytes = memory_view_total(limits, driver_total_bytes);
    view.used_bytes = least(total_bytes, device_used_bytes(device, level) + device_host_bytes(device, level));
    view.free_bytes = least(view.free_bytes, total_bytes - view.used_bytes);
    view.total_bytes = least(view.total_bytes, total_bytes);
  }
  return view;
}

uint64_t memory_view_total(struct limits limits, uint64_t driver_total_bytes) {
  return limits_oversubscribe(limits) ? limits.virtual_bytes : least(driver_total_bytes, limits.memory_bytes);
}
