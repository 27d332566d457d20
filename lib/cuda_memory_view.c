/* What the program sees of a device's memory: a device of the limit's size. */
#include "cuda_memory.h"
#include "process.h"

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
  device_correct_overhead(device, DEVICE_SELDOM_NS);
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
