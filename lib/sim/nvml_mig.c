/* MIG: which instances a card has, and which card an instance is on. */
#include <stddef.h>

#include "cards.h"
#include "nvml_api.h"

#define FIRST_GPU_INSTANCE 7 /* as on a card that is cut into its smallest instances */

static char parents[SIM_MAX_DEVICES];

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

/* The card of a handle, and the device where the handle is not that of a card in MIG mode. */
static nvmlReturn_t find(nvmlDevice_t handle, unsigned *card, bool *parent, unsigned *device) {
  nvmlReturn_t result = nvml_ready();
  if (result != NVML_SUCCESS)
    return result;
  *parent = nvml_is_parent(handle, card);
  if (*parent)
    return NVML_SUCCESS;
  result = nvml_device(handle, device);
  if (result == NVML_SUCCESS)
    *card = card_of(*device);
  return result;
}

nvmlReturn_t DECLDIR nvmlDeviceGetMigMode(nvmlDevice_t handle, unsigned int *current, unsigned int *pending) {
  unsigned card, device;
  bool parent;
  nvmlReturn_t result = find(handle, &card, &parent, &device);
  if (result != NVML_SUCCESS)
    return result;
  if (!current || !pending)
    return NVML_ERROR_INVALID_ARGUMENT;
  if (!parent)
    return NVML_ERROR_NOT_SUPPORTED;
  *current = *pending = NVML_DEVICE_MIG_ENABLE;
  return NVML_SUCCESS;
}

nvmlReturn_t DECLDIR nvmlDeviceIsMigDeviceHandle(nvmlDevice_t handle, unsigned int *is_mig) {
  unsigned card, device;
  bool parent;
  nvmlReturn_t result = find(handle, &card, &parent, &device);
  if (result != NVML_SUCCESS)
    return result;
  if (!is_mig)
    return NVML_ERROR_INVALID_ARGUMENT;
  *is_mig = !parent && is_instance(device);
  return NVML_SUCCESS;
}

nvmlReturn_t DECLDIR nvmlDeviceGetMaxMigDeviceCount(nvmlDevice_t handle, unsigned int *count) {
  unsigned card, device;
  bool parent;
  nvmlReturn_t result = find(handle, &card, &parent, &device);
  if (result != NVML_SUCCESS)
    return result;
  if (!count)
    return NVML_ERROR_INVALID_ARGUMENT;
  *count = parent ? CARD_MAX_INSTANCES : 0;
  return NVML_SUCCESS;
}

nvmlReturn_t DECLDIR nvmlDeviceGetMigDeviceHandleByIndex(nvmlDevice_t handle, unsigned int index,
                                                         nvmlDevice_t *instance) {
  unsigned card, device;
  bool parent;
  nvmlReturn_t result = find(handle, &card, &parent, &device);
  if (result != NVML_SUCCESS)
    return result;
  if (!instance || !parent)
    return NVML_ERROR_INVALID_ARGUMENT;
  if (index >= card_devices(card))
    return NVML_ERROR_NOT_FOUND;
  *instance = nvml_handle(card_first(card) + index);
  return NVML_SUCCESS;
}

static nvmlReturn_t find_instance(nvmlDevice_t handle, const void *output, unsigned *card, unsigned *device) {
  bool parent;
  nvmlReturn_t result = find(handle, card, &parent, device);
  if (result != NVML_SUCCESS)
    return result;
  return !output || parent || !is_instance(*device) ? NVML_ERROR_INVALID_ARGUMENT : NVML_SUCCESS;
}

nvmlReturn_t DECLDIR nvmlDeviceGetDeviceHandleFromMigDeviceHandle(nvmlDevice_t handle, nvmlDevice_t *parent) {
  unsigned card, device;
  nvmlReturn_t result = find_instance(handle, parent, &card, &device);
  if (result == NVML_SUCCESS)
    *parent = nvml_card_handle(card);
  return result;
}

nvmlReturn_t DECLDIR nvmlDeviceGetGpuInstanceId(nvmlDevice_t handle, unsigned int *id) {
  unsigned card, device;
  nvmlReturn_t result = find_instance(handle, id, &card, &device);
  if (result == NVML_SUCCESS)
    *id = FIRST_GPU_INSTANCE + device - card_first(card);
  return result;
}

nvmlReturn_t DECLDIR nvmlDeviceGetComputeInstanceId(nvmlDevice_t handle, unsigned int *id) {
  unsigned card, device;
  nvmlReturn_t result = find_instance(handle, id, &card, &device);
  if (result == NVML_SUCCESS)
    *id = 0;
  return result;
}
