#include "cuda/measured_allocation.h"
#include "cuda/overhead.h"

#include "device/capture.h"
#include "device/process.h"

struct device *making_device(void) {
  return process_shows_limits() ? device_of_current_context() : NULL;
}

CUresult making_begin(struct making *making, struct device *device, uint64_t at_least_bytes) {
  *making = (struct making){.device = device, .reserved_bytes = ledger_driver_size(at_least_bytes)};
  if (device == NULL)
    return CUDA_SUCCESS;
  CUstreamCaptureMode mode = capture_relax();
  making->held_before = device_used_bytes(device);
  CUresult result = memory_reserve(device, making->reserved_bytes);
  capture_restore(mode);
  return result;
}

bool making_passes_limit(const struct making *making, CUresult result) {
  bool counted =
      making->device != NULL && result == CUDA_SUCCESS && overhead_count_made(making->device, making->reserved_bytes);
  memory_cancel(making->device, making->reserved_bytes);
  return counted && memory_is_over(making->device);
}

CUresult making_refuse(const struct making *making) {
  uint64_t held_bytes = device_used_bytes(making->device);
  overhead_correct(making->device, 0);
  return memory_refuse(making->device, held_bytes > making->held_before ? held_bytes - making->held_before : 0);
}

CUresult making_undone(struct device *device, CUresult result) {
  if (device != NULL && result == CUDA_SUCCESS)
    overhead_correct(device, 0);
  return result;
}
