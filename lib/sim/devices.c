/* Queries of devices. */
#include <stdio.h>
#include <string.h>

#include "driver.h"
#include "pci.h"
#include "visible.h"

static CUresult enter(CUdevice ordinal, const void *output, unsigned *device) {
  FORWARD_IF_ERROR(driver_enter());
  if (!output)
    return driver_leave(CUDA_ERROR_INVALID_VALUE);
  return visible_device(ordinal, device) ? CUDA_SUCCESS : driver_leave(CUDA_ERROR_INVALID_DEVICE);
}

CUresult CUDAAPI cuDeviceGetCount(int *count) {
  FORWARD_IF_ERROR(driver_enter());
  if (!count)
    return driver_leave(CUDA_ERROR_INVALID_VALUE);
  *count = (int)visible_count();
  return driver_leave(CUDA_SUCCESS);
}

CUresult CUDAAPI cuDeviceGet(CUdevice *handle, int ordinal) {
  unsigned device;
  FORWARD_IF_ERROR(enter(ordinal, handle, &device));
  *handle = ordinal;
  return driver_leave(CUDA_SUCCESS);
}

CUresult CUDAAPI cuDeviceGetName(char *name, int size, CUdevice ordinal) {
  unsigned device;
  FORWARD_IF_ERROR(enter(ordinal, name, &device));
  if (size <= 0)
    return driver_leave(CUDA_ERROR_INVALID_VALUE);
  snprintf(name, (size_t)size, "%s", sim_config.devices[device].name);
  return driver_leave(CUDA_SUCCESS);
}

CUresult CUDAAPI cuDeviceGetUuid_v2(CUuuid *uuid, CUdevice ordinal) {
  unsigned device;
  FORWARD_IF_ERROR(enter(ordinal, uuid, &device));
  config_uuid_bytes(&sim_config.devices[device], (unsigned char *)uuid->bytes);
  return driver_leave(CUDA_SUCCESS);
}

/* An instance answers for its card. */
CUresult CUDAAPI cuDeviceGetUuid(CUuuid *uuid, CUdevice ordinal) {
  unsigned device;
  struct device_config whole;
  FORWARD_IF_ERROR(enter(ordinal, uuid, &device));
  card_uuid(card_of(device), whole.uuid);
  config_uuid_bytes(&whole, (unsigned char *)uuid->bytes);
  return driver_leave(CUDA_SUCCESS);
}

CUresult CUDAAPI cuDeviceTotalMem_v2(size_t *bytes, CUdevice ordinal) {
  unsigned device;
  FORWARD_IF_ERROR(enter(ordinal, bytes, &device));
  *bytes = sim_config.devices[device].memory_bytes;
  return driver_leave(CUDA_SUCCESS);
}

CUresult CUDAAPI cuDeviceTotalMem(unsigned int *bytes, CUdevice ordinal) {
  size_t size;
  CUresult result = cuDeviceTotalMem_v2(bytes ? &size : NULL, ordinal);
  if (result == CUDA_SUCCESS)
    *bytes = size > UINT32_MAX ? UINT32_MAX : (unsigned)size;
  return result;
}

CUresult CUDAAPI cuDeviceComputeCapability(int *major, int *minor, CUdevice ordinal) {
  unsigned device;
  FORWARD_IF_ERROR(enter(ordinal, major, &device));
  if (!minor)
    return driver_leave(CUDA_ERROR_INVALID_VALUE);
  *major = (int)sim_config.devices[device].compute_capability / 10;
  *minor = (int)sim_config.devices[device].compute_capability % 10;
  return driver_leave(CUDA_SUCCESS);
}

CUresult CUDAAPI cuDeviceGetPCIBusId(char *id, int size, CUdevice ordinal) {
  unsigned device;
  char text[PCI_ID_SIZE];
  FORWARD_IF_ERROR(enter(ordinal, id, &device));
  pci_format(device, 4, text);
  if (size <= (int)strlen(text))
    return driver_leave(CUDA_ERROR_INVALID_VALUE);
  strcpy(id, text);
  return driver_leave(CUDA_SUCCESS);
}

CUresult CUDAAPI cuDeviceGetByPCIBusId(CUdevice *handle, const char *id) {
  unsigned device;
  FORWARD_IF_ERROR(driver_enter());
  if (!handle || !id)
    return driver_leave(CUDA_ERROR_INVALID_VALUE);
  if (!pci_find(id, &device))
    return driver_leave(CUDA_ERROR_INVALID_VALUE);
  for (unsigned i = 0; i < card_devices(card_of(device)); i++) {
    CUdevice ordinal = visible_ordinal(device + i);
    if (ordinal >= 0) {
      *handle = ordinal;
      return driver_leave(CUDA_SUCCESS);
    }
  }
  return driver_leave(CUDA_ERROR_INVALID_DEVICE);
}
