/* cuDeviceGetAttribute. Attributes of hardware that is not simulated (textures, caches, clocks) are 0. */
#include "driver.h"
#include "mps.h"
#include "pci.h"
#include "visible.h"

#define MPS_ENABLED 133 /* older headers do not name it */
#define ATTRIBUTE(name) CU_DEVICE_ATTRIBUTE_##name

static const struct {
  CUdevice_attribute attribute;
  int value;
} constants[] = {
    {ATTRIBUTE(MAX_THREADS_PER_BLOCK), 1024},
    {ATTRIBUTE(MAX_BLOCK_DIM_X), 1024},
    {ATTRIBUTE(MAX_BLOCK_DIM_Y), 1024},
    {ATTRIBUTE(MAX_BLOCK_DIM_Z), 64},
    {ATTRIBUTE(MAX_GRID_DIM_X), INT32_MAX},
    {ATTRIBUTE(MAX_GRID_DIM_Y), UINT16_MAX},
    {ATTRIBUTE(MAX_GRID_DIM_Z), UINT16_MAX},
    {ATTRIBUTE(MAX_SHARED_MEMORY_PER_BLOCK), 48 * 1024},
    {ATTRIBUTE(MAX_SHARED_MEMORY_PER_BLOCK_OPTIN), 227 * 1024},
    {ATTRIBUTE(MAX_SHARED_MEMORY_PER_MULTIPROCESSOR), 228 * 1024},
    {ATTRIBUTE(TOTAL_CONSTANT_MEMORY), 64 * 1024},
    {ATTRIBUTE(WARP_SIZE), 32},
    {ATTRIBUTE(MAX_PITCH), INT32_MAX},
    {ATTRIBUTE(MAX_REGISTERS_PER_BLOCK), 64 * 1024},
    {ATTRIBUTE(MAX_REGISTERS_PER_MULTIPROCESSOR), 64 * 1024},
    {ATTRIBUTE(TEXTURE_ALIGNMENT), 512},
    {ATTRIBUTE(MAX_THREADS_PER_MULTIPROCESSOR), 2048},
    {ATTRIBUTE(MAX_BLOCKS_PER_MULTIPROCESSOR), 32},
    {ATTRIBUTE(CAN_MAP_HOST_MEMORY), 1},
    {ATTRIBUTE(UNIFIED_ADDRESSING), 1},
    {ATTRIBUTE(MANAGED_MEMORY), 1},
    {ATTRIBUTE(CONCURRENT_MANAGED_ACCESS), 1},
    {ATTRIBUTE(STREAM_PRIORITIES_SUPPORTED), 1},
    {ATTRIBUTE(COOPERATIVE_LAUNCH), 1},
    {ATTRIBUTE(HOST_REGISTER_SUPPORTED), 1},
    {ATTRIBUTE(CAN_USE_HOST_POINTER_FOR_REGISTERED_MEM), 1},
    {ATTRIBUTE(VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED), 1},
    {ATTRIBUTE(SPARSE_CUDA_ARRAY_SUPPORTED), 1},
    {ATTRIBUTE(MEMORY_POOLS_SUPPORTED), 1},
    {ATTRIBUTE(MULTICAST_SUPPORTED), 1},
    {ATTRIBUTE(COMPUTE_MODE), CU_COMPUTEMODE_DEFAULT},
};

static int value_of(unsigned device, CUdevice_attribute attribute) {
  const struct device_config *config = &sim_config.devices[device];
  switch ((int)attribute) {
  case ATTRIBUTE(MULTIPROCESSOR_COUNT):
    return (int)(config->multiprocessors * mps_active_percent() + 99) / 100;
  case ATTRIBUTE(COMPUTE_CAPABILITY_MAJOR):
    return (int)config->compute_capability / 10;
  case ATTRIBUTE(COMPUTE_CAPABILITY_MINOR):
    return (int)config->compute_capability % 10;
  case MPS_ENABLED:
    return mps_is_client();
  case ATTRIBUTE(PCI_BUS_ID):
    return (int)pci_bus(device);
  default:
    break;
  }
  for (size_t i = 0; i < sizeof constants / sizeof *constants; i++)
    if (constants[i].attribute == attribute)
      return constants[i].value;
  return 0;
}

CUresult CUDAAPI cuDeviceGetAttribute(int *value, CUdevice_attribute attribute, CUdevice ordinal) {
  unsigned device;
  FORWARD_IF_ERROR(driver_enter());
  if (!value || attribute <= 0 || (attribute >= CU_DEVICE_ATTRIBUTE_MAX && attribute != MPS_ENABLED))
    return driver_leave(CUDA_ERROR_INVALID_VALUE);
  if (!visible_device(ordinal, &device))
    return driver_leave(CUDA_ERROR_INVALID_DEVICE);
  *value = value_of(device, attribute);
  return driver_leave(CUDA_SUCCESS);
}
