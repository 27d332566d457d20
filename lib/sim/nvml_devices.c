/* The cards and devices that the simulated NVML lists, in the order of the configuration. */
#include <stdio.h>
#include <string.h>

#include "cards.h"
#include "limits.h"
#include "nvml_faults.h"
#include "nvml_handles.h"
#include "pci.h"
#include "state.h"

/* The card of a handle, and the first device on it unless the handle is that of another. */
static nvmlReturn_t find_card(nvmlDevice_t handle, unsigned *card, unsigned *device) {
  nvmlReturn_t result = nvml_device(handle, device);
  if (result == NVML_SUCCESS)
    *card = card_of(*device);
  else if (result == NVML_ERROR_NOT_SUPPORTED && nvml_is_parent(handle, card)) {
    *device = card_first(*card);
    result = NVML_SUCCESS;
  }
  return result;
}

static nvmlReturn_t copy_text(const char *text, char *target, unsigned length) {
  if (!target)
    return NVML_ERROR_INVALID_ARGUMENT;
  if (length <= strlen(text))
    return NVML_ERROR_INSUFFICIENT_SIZE;
  strcpy(target, text);
  return NVML_SUCCESS;
}

nvmlReturn_t DECLDIR nvmlDeviceGetCount_v2(unsigned int *count) {
  FORWARD_IF_ERROR(nvml_ready());
  if (!count)
    return NVML_ERROR_INVALID_ARGUMENT;
  *count = card_count();
  return NVML_SUCCESS;
}

nvmlReturn_t DECLDIR nvmlDeviceGetCount(unsigned int *count) {
  return nvmlDeviceGetCount_v2(count);
}

/* The handle of a card that is there. */
static nvmlReturn_t find_handle(unsigned card, nvmlDevice_t *handle) {
  if (fault_is_lost(card_first(card)))
    return NVML_ERROR_GPU_IS_LOST;
  *handle = nvml_card_handle(card);
  return NVML_SUCCESS;
}

nvmlReturn_t DECLDIR nvmlDeviceGetHandleByIndex_v2(unsigned int index, nvmlDevice_t *handle) {
  FORWARD_IF_ERROR(nvml_ready());
  if (!handle || index >= card_count())
    return NVML_ERROR_INVALID_ARGUMENT;
  return find_handle(index, handle);
}

nvmlReturn_t DECLDIR nvmlDeviceGetHandleByIndex(unsigned int index, nvmlDevice_t *handle) {
  return nvmlDeviceGetHandleByIndex_v2(index, handle);
}

nvmlReturn_t DECLDIR nvmlDeviceGetHandleByUUID(const char *uuid, nvmlDevice_t *handle) {
  FORWARD_IF_ERROR(nvml_ready());
  if (!uuid || !handle)
    return NVML_ERROR_INVALID_ARGUMENT;
  for (unsigned device = 0; device < sim_config.device_count; device++) {
    if (fault_is_lost(device))
      return NVML_ERROR_GPU_IS_LOST; /* nvml.h: "if any GPU has fallen off the bus": the search does not pass it */
    if (strcasecmp(sim_config.devices[device].uuid, uuid) == 0) {
      *handle = nvml_handle(device);
      return NVML_SUCCESS;
    }
  }
  for (unsigned card = 0; card < card_count(); card++) {
    char found[SIM_UUID_SIZE];
    card_uuid(card, found);
    if (strcasecmp(found, uuid) == 0) {
      *handle = nvml_card_handle(card);
      return NVML_SUCCESS;
    }
  }
  return NVML_ERROR_NOT_FOUND;
}

nvmlReturn_t DECLDIR nvmlDeviceGetHandleByPciBusId_v2(const char *id, nvmlDevice_t *handle) {
  unsigned device;
  FORWARD_IF_ERROR(nvml_ready());
  if (!id || !handle)
    return NVML_ERROR_INVALID_ARGUMENT;
  if (!pci_find(id, &device))
    return NVML_ERROR_NOT_FOUND;
  return find_handle(card_of(device), handle);
}

nvmlReturn_t DECLDIR nvmlDeviceGetHandleByPciBusId(const char *id, nvmlDevice_t *handle) {
  return nvmlDeviceGetHandleByPciBusId_v2(id, handle);
}

nvmlReturn_t DECLDIR nvmlDeviceGetName(nvmlDevice_t handle, char *name, unsigned int length) {
  unsigned device, card;
  FORWARD_IF_ERROR(find_card(handle, &card, &device));
  struct device_config named = sim_config.devices[device];
  char *of_instance = strstr(named.name, " MIG ");
  if (of_instance && nvml_is_parent(handle, &card))
    *of_instance = '\0';
  return copy_text(named.name, name, length);
}

nvmlReturn_t DECLDIR nvmlDeviceGetUUID(nvmlDevice_t handle, char *uuid, unsigned int length) {
  unsigned device, card;
  FORWARD_IF_ERROR(find_card(handle, &card, &device));
  char whole[SIM_UUID_SIZE];
  card_uuid(card, whole);
  return copy_text(nvml_is_parent(handle, &card) ? whole : sim_config.devices[device].uuid, uuid, length);
}

nvmlReturn_t DECLDIR nvmlDeviceGetIndex(nvmlDevice_t handle, unsigned int *index) {
  unsigned device, card;
  FORWARD_IF_ERROR(find_card(handle, &card, &device));
  if (!index)
    return NVML_ERROR_INVALID_ARGUMENT;
  bool is_part = is_instance(device) && !nvml_is_parent(handle, &card);
  *index = is_part ? device - card_first(card) : card; /* an instance's, among those of its card */
  return NVML_SUCCESS;
}

nvmlReturn_t DECLDIR nvmlDeviceGetMinorNumber(nvmlDevice_t handle, unsigned int *minor) {
  unsigned device;
  bool is_part = nvml_device(handle, &device) == NVML_SUCCESS && is_instance(device);
  return is_part ? NVML_ERROR_NOT_SUPPORTED : nvmlDeviceGetIndex(handle, minor);
}

nvmlReturn_t DECLDIR nvmlDeviceGetPciInfo_v3(nvmlDevice_t handle, nvmlPciInfo_t *info) {
  unsigned device, card;
  FORWARD_IF_ERROR(find_card(handle, &card, &device));
  if (!info)
    return NVML_ERROR_INVALID_ARGUMENT;
  *info = (nvmlPciInfo_t){.bus = pci_bus(device)};
  pci_format(device, 4, info->busIdLegacy);
  pci_format(device, 8, info->busId);
  return NVML_SUCCESS;
}

nvmlReturn_t DECLDIR nvmlDeviceGetPciInfo_v2(nvmlDevice_t handle, nvmlPciInfo_t *info) {
  return nvmlDeviceGetPciInfo_v3(handle, info);
}

nvmlReturn_t DECLDIR nvmlDeviceGetPciInfo(nvmlDevice_t handle, nvmlPciInfo_t *info) {
  return nvmlDeviceGetPciInfo_v3(handle, info);
}

nvmlReturn_t DECLDIR nvmlDeviceGetCudaComputeCapability(nvmlDevice_t handle, int *major, int *minor) {
  unsigned device, card;
  FORWARD_IF_ERROR(find_card(handle, &card, &device));
  if (!major || !minor)
    return NVML_ERROR_INVALID_ARGUMENT;
  *major = (int)sim_config.devices[device].compute_capability / 10;
  *minor = (int)sim_config.devices[device].compute_capability % 10;
  return NVML_SUCCESS;
}

nvmlReturn_t DECLDIR nvmlDeviceGetMemoryInfo(nvmlDevice_t handle, nvmlMemory_t *memory) {
  unsigned device, card;
  FORWARD_IF_ERROR(find_card(handle, &card, &device));
  if (!memory)
    return NVML_ERROR_INVALID_ARGUMENT;
  unsigned count = nvml_is_parent(handle, &card) ? card_devices(card) : 1; /* a card has what its instances have */
  *memory = (nvmlMemory_t){0};
  for (unsigned i = device; i < device + count; i++) {
    memory->total += sim_config.devices[i].memory_bytes;
    memory->used += min_u64(sim_config.devices[i].memory_bytes, state_used_bytes(i));
  }
  memory->free = memory->total - memory->used;
  return NVML_SUCCESS;
}

nvmlReturn_t DECLDIR nvmlDeviceGetMemoryInfo_v2(nvmlDevice_t handle, nvmlMemory_v2_t *memory) {
  nvmlMemory_t sizes;
  unsigned device;
  if (memory && nvml_ready() == NVML_SUCCESS && memory->version != nvmlMemory_v2)
    return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
  FORWARD_IF_ERROR(nvmlDeviceGetMemoryInfo(handle, memory ? &sizes : NULL));
  memory->total = sizes.total;
  memory->free = sizes.free;
  if (nvml_device(handle, &device) == NVML_SUCCESS && !is_instance(device)) {
    struct memory_view view = limits_view(device); /* this version alone shows the limits of the caller's cgroup */
    memory->total = view.total_bytes;
    memory->free = view.free_bytes;
  }
  memory->used = memory->total - memory->free;
  memory->reserved = 0;
  return NVML_SUCCESS;
}
