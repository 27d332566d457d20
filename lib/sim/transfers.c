#include "transfers.h"

#include "capture.h"
#include "device_memory.h"
#include "vmm.h"

bool transfer_is_ours(uintptr_t address, size_t size) {
  struct allocation allocation;
  if (!memory_find(address, &allocation) || size > allocation.base + allocation.size - address)
    return false;
  if (allocation.region->kind != REGION_RESERVATION)
    return true;
  for (uintptr_t at = address; at < address + size;) {
    const struct mapping *mapping = vmm_mapping_at(allocation.region, at);
    if (!mapping || !mapping->accessible)
      return false;
    at = mapping->base + mapping->size;
  }
  return true;
}

bool transfer_keeps_data(uintptr_t address) {
  const struct region *region = region_find(address);
  return !region || region->keeps_data;
}

uint64_t transfer_ns(uint64_t bytes, uint64_t bytes_per_ms) {
  return bytes / bytes_per_ms * NS_PER_MS + bytes % bytes_per_ms * NS_PER_MS / bytes_per_ms;
}

CUresult transfer_queue(struct stream *stream, CUgraphNodeType type, uint64_t duration_ns, uint64_t *end_ns) {
  *end_ns = 0;
  if (stream->capture)
    return capture_add(stream, (struct graph_node){.type = type, .duration_ns = duration_ns});
  bool is_copy = type == CU_GRAPH_NODE_TYPE_MEMCPY;
  *end_ns = is_copy ? stream_queue_copy(stream, duration_ns) : stream_queue(stream, duration_ns);
  return CUDA_SUCCESS;
}
