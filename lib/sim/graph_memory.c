#include "graph_memory.h"

#include "config.h"
#include "driver.h"
#include "pools.h"
#include "state.h"
#include "visible.h"

static struct graph_memory {
  uint64_t reserved_bytes, reserved_high_bytes;
  uint64_t live_bytes, live_high_bytes;
} of_device[SIM_MAX_DEVICES];

#define STEP_BYTES (32 * MIB)

uint64_t graph_memory_size(const struct region *region) {
  return round_up(region->size, DEVICE_PAGE);
}

void graph_memory_hold(struct region *region) {
  region->holders++;
}

void graph_memory_let_go(struct region *region) {
  if (--region->holders == 0 && !region->live)
    region_delete(region);
}

void graph_memory_set_live(struct region *region, bool live) {
  struct graph_memory *memory = &of_device[region->device];
  if (region->live == live)
    return;
  region->live = live;
  memory->live_bytes += live ? graph_memory_size(region) : -graph_memory_size(region);
  memory->live_high_bytes = max_u64(memory->live_high_bytes, memory->live_bytes);
}

uint64_t graph_memory_live_bytes(unsigned device) {
  return of_device[device].live_bytes;
}

bool graph_memory_grow(unsigned device, uint64_t peak_bytes) {
  struct graph_memory *memory = &of_device[device];
  uint64_t peak = round_up(peak_bytes, STEP_BYTES);
  if (peak <= memory->reserved_bytes)
    return true;
  if (!pools_take_memory(device, peak - memory->reserved_bytes))
    return false;
  memory->reserved_bytes = peak;
  memory->reserved_high_bytes = max_u64(memory->reserved_high_bytes, peak);
  return true;
}

void graph_memory_free(struct region *region) {
  graph_memory_set_live(region, false);
  if (region->holders == 0)
    region_delete(region);
}

static void trim(unsigned device) {
  struct graph_memory *memory = &of_device[device];
  uint64_t kept_bytes = round_up(memory->live_bytes, STEP_BYTES);
  state_release(device, memory->reserved_bytes - kept_bytes);
  memory->reserved_bytes = kept_bytes;
}

static void free_if_of(struct region *region, void *device) {
  if (region->kind == REGION_GRAPH && region->live && region->device == *(unsigned *)device)
    graph_memory_free(region);
}

void graph_memory_empty_device(unsigned device) {
  region_visit(free_if_of, &device);
  trim(device);
}

static CUresult enter_device(CUdevice ordinal, unsigned *device) {
  FORWARD_IF_ERROR(driver_enter());
  return visible_device(ordinal, device) ? CUDA_SUCCESS : driver_leave(CUDA_ERROR_INVALID_DEVICE);
}

CUresult CUDAAPI cuDeviceGraphMemTrim(CUdevice ordinal) {
  unsigned device;
  FORWARD_IF_ERROR(enter_device(ordinal, &device));
  trim(device);
  return driver_leave(CUDA_SUCCESS);
}

static uint64_t *attribute_of(struct graph_memory *memory, CUgraphMem_attribute attribute) {
  switch (attribute) {
  case CU_GRAPH_MEM_ATTR_USED_MEM_CURRENT:
    return &memory->live_bytes;
  case CU_GRAPH_MEM_ATTR_USED_MEM_HIGH:
    return &memory->live_high_bytes;
  case CU_GRAPH_MEM_ATTR_RESERVED_MEM_CURRENT:
    return &memory->reserved_bytes;
  case CU_GRAPH_MEM_ATTR_RESERVED_MEM_HIGH:
    return &memory->reserved_high_bytes;
  default:
    return NULL;
  }
}

CUresult CUDAAPI cuDeviceGetGraphMemAttribute(CUdevice ordinal, CUgraphMem_attribute attribute, void *value) {
  unsigned device;
  FORWARD_IF_ERROR(enter_device(ordinal, &device));
  const uint64_t *bytes = attribute_of(&of_device[device], attribute);
  if (!value || !bytes)
    return driver_leave(CUDA_ERROR_INVALID_VALUE);
  *(uint64_t *)value = *bytes;
  return driver_leave(CUDA_SUCCESS);
}

/* A high-water mark can only be reset, by setting it to 0. */
CUresult CUDAAPI cuDeviceSetGraphMemAttribute(CUdevice ordinal, CUgraphMem_attribute attribute, void *value) {
  unsigned device;
  FORWARD_IF_ERROR(enter_device(ordinal, &device));
  bool high = attribute == CU_GRAPH_MEM_ATTR_USED_MEM_HIGH || attribute == CU_GRAPH_MEM_ATTR_RESERVED_MEM_HIGH;
  if (!value || !high || *(uint64_t *)value != 0)
    return driver_leave(CUDA_ERROR_INVALID_VALUE);
  uint64_t *bytes = attribute_of(&of_device[device], attribute);
  *bytes =
      attribute == CU_GRAPH_MEM_ATTR_USED_MEM_HIGH ? of_device[device].live_bytes : of_device[device].reserved_bytes;
  return driver_leave(CUDA_SUCCESS);
}
