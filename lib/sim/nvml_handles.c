#include "nvml_handles.h"

#include "cards.h"
#include "nvml_faults.h"

static char parents[SIM_MAX_DEVICES];

nvmlDevice_t nvml_handle(unsigned device) {
  return (nvmlDevice_t)&sim_config.devices[device];
}

nvmlDevice_t nvml_card_handle(unsigned card) {
  return card_is_mig(card) ? (nvmlDevice_t)&parents[card] : nvml_handle(card_first(card));
}

bool nvml_is_parent(nvmlDevice_t handle, unsigned *card) {
  for (unsigned each = 0; each < card_count(); each++)
    if (card_is_mig(each) && handle == nvml_card_handle(each)) {
      *card = each;
      return true;
    }
  return false;
}

nvmlReturn_t nvml_device(nvmlDevice_t handle, unsigned *device) {
  unsigned card;
  FORWARD_IF_ERROR(nvml_ready());
  for (*device = 0; *device < sim_config.device_count; (*device)++)
    if (nvml_handle(*device) == handle)
      return fault_is_lost(*device) ? NVML_ERROR_GPU_IS_LOST : NVML_SUCCESS;
  return nvml_is_parent(handle, &card) ? NVML_ERROR_NOT_SUPPORTED : NVML_ERROR_INVALID_ARGUMENT;
}
