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
  FORWARD_IF_ERROR(nvml_ready());
  found->is_parent = nvml_is_parent(handle, &found->card);
  if (!found->is_parent) {
    FORWARD_IF_ERROR(nvml_device(handle, &found->device));
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

/* Defines a function with one answer about the place that a handle is found to be. */
#define ANSWER(name, find, type, answer)                                                                               \
  nvmlReturn_t DECLDIR name(nvmlDevice_t handle, type *output) {                                                       \
    struct place found;                                                                                                \
    FORWARD_IF_ERROR(find(handle, output, &found));                                                                    \
    *output = answer;                                                                                                  \
    return NVML_SUCCESS;                                                                                               \
  }

ANSWER(nvmlDeviceIsMigDeviceHandle, find, unsigned int, !found.is_parent && is_instance(found.device))
ANSWER(nvmlDeviceGetMaxMigDeviceCount, find, unsigned int, found.is_parent ? CARD_MAX_INSTANCES : 0)
ANSWER(nvmlDeviceGetDeviceHandleFromMigDeviceHandle, find_instance, nvmlDevice_t, nvml_card_handle(found.card))
ANSWER(nvmlDeviceGetGpuInstanceId, find_instance, unsigned int,
       FIRST_GPU_INSTANCE + found.device - card_first(found.card))
ANSWER(nvmlDeviceGetComputeInstanceId, find_instance, unsigned int, 0)
