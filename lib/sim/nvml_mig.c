/* MIG: which instances a card has, and which card an instance is on. */
#include <stddef.h>

#include "cards.h"
#include "nvml_handles.h"

#define FIRST_GPU_INSTANCE 7 /* a card's first, if that is cut into its smallest instances */

/* A handle's target: a card in MIG mode, or else a device on a card. */
struct place {
  bool is_parent;
  unsigned card;
  unsigned device;
};

/* Checks that every function of NVML begins with: is it ready, is the handle good, and is there a place for the answer?
 */
static nvmlReturn_t find(nvmlDevice_t handle, const void *output, struct place *found) {
  nvmlReturn_t result = nvml_ready();
  if (result != NVML_SUCCESS)
    return result;
  found->is_parent = nvml_is_parent(handle, &found->card);
  if (!found->is_parent) {
    result = nvml_device(handle, &found->device);
    if (result != NVML_SUCCESS)
      return result;
    found->card = card_of(found->device);
  }
  return output ? NVML_SUCCESS : NVML_ERROR_INVALID_ARGUMENT;
}

static nvmlReturn_t find_instance(nvmlDevice_t handle, const void *output, struct place *found) {
  FORWARD_IF_ERROR(find(handle, output, found));
  return found->is_parent || !is_instance(found->device) ? NVML_ERROR_INVALID_ARGUMENT : NVML_SUCCESS;
}

nvmlReturn_t DECLDIR nvmlDeviceGetMigMode(nvmlDevice_t handle, unsigned int *current, unsigned int *pending) {
  struct place found;
  FORWARD_IF_ERROR(find(handle, pending ? current : NULL, &found));
  if (!found.is_parent)
    return NVML_ERROR_NOT_SUPPORTED;
  *current = *pending = NVML_DEVICE_MIG_ENABLE;
  return NVML_SUCCESS;
}

nvmlReturn_t DECLDIR nvmlDeviceIsMigDeviceHandle(nvmlDevice_t handle, unsigned int *is_mig) {
  struct place found;
  nvmlReturn_t result = find(handle, is_mig, &found);
  if (result == NVML_SUCCESS)
    *is_mig = !found.is_parent && is_instance(found.device);
  return result;
}

nvmlReturn_t DECLDIR nvmlDeviceGetMaxMigDeviceCount(nvmlDevice_t handle, unsigned int *count) {
  struct place found;
  nvmlReturn_t result = find(handle, count, &found);
  if (result == NVML_SUCCESS)
    *count = found.is_parent ? CARD_MAX_INSTANCES : 0;
  return result;
}

nvmlReturn_t DECLDIR nvmlDeviceGetMigDeviceHandleByIndex(nvmlDevice_t handle, unsigned int index,
                                                         nvmlDevice_t *instance) {
  struct place found;
  FORWARD_IF_ERROR(find(handle, instance, &found));
  if (!found.is_parent)
    return NVML_ERROR_INVALID_ARGUMENT;
  if (index >= card_devices(found.card))
    return NVML_ERROR_NOT_FOUND;
  *instance = nvml_handle(card_first(found.card) + index);
  return NVML_SUCCESS;
}

nvmlReturn_t DECLDIR nvmlDeviceGetDeviceHandleFromMigDeviceHandle(nvmlDevice_t handle, nvmlDevice_t *parent) {
  struct place found;
  nvmlReturn_t result = find_instance(handle, parent, &found);
  if (result == NVML_SUCCESS)
    *parent = nvml_card_handle(found.card);
  return result;
}

nvmlReturn_t DECLDIR nvmlDeviceGetGpuInstanceId(nvmlDevice_t handle, unsigned int *id) {
  struct place found;
  nvmlReturn_t result = find_instance(handle, id, &found);
  if (result == NVML_SUCCESS)
    *id = FIRST_GPU_INSTANCE + found.device - card_first(found.card);
  return result;
}

nvmlReturn_t DECLDIR nvmlDeviceGetComputeInstanceId(nvmlDevice_t handle, unsigned int *id) {
  struct place found;
  nvmlReturn_t result = find_instance(handle, id, &found);
  if (result == NVML_SUCCESS)
    *id = 0;
  return result;
}
