#include "scheduler/rm.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

/* Protection and coherency of memory (nvos.h: NVOS32_ATTR2_PROTECTION_USER_READ_ONLY,
 * NVOS32_ATTR_COHERENCY_WRITE_BACK). */
#define USER_READ_ONLY (1u << 22)
#define WRITE_BACK (5u << 29)

struct control {
  uint32_t client, object, command, flags;
  uint64_t parameters;
  uint32_t size, status;
};
struct memory_parameters {
  uint32_t owner, type, flags, width, height;
  int32_t pitch;
  uint32_t attributes, attributes2, format, compression, culling, padding;
  uint64_t low, high, size, alignment, offset, limit, address;
  uint32_t tag_offset, address_space, internal_flags, tag;
  int32_t numa_node;
  uint32_t padding2;
};
struct map_memory {
  uint32_t client, device, memory, padding;
  uint64_t offset, length, address;
  uint32_t status, flags;
  int32_t file;
  uint32_t padding2;
};
struct idle_channels {
  uint32_t client, device, channel, count;
  uint64_t clients, devices, channels;
  uint32_t flags, timeout_us, status, padding;
};

/* An H200's driver says "busy" of channels with nothing to do where it may look for 100 us or less. */
#define LOOKS_FOR_US 200

static int kernels_ioctl(int file, unsigned long request, void *argument) {
  return (int)syscall(SYS_ioctl, file, request, argument);
}
int (*rm_ioctl)(int file, unsigned long request, void *argument) = kernels_ioctl;

/* Makes a call, whose answer is in its `status`. */
static uint32_t call_rm(int file, unsigned long request, void *call, const uint32_t *status) {
  return __atomic_load_n(&rm_ioctl, __ATOMIC_RELAXED)(file, request, call) == 0 ? *status : RM_NOT_CALLED;
}

uint32_t rm_control(struct rm_client client, uint32_t object, uint32_t command, void *parameters, uint32_t size) {
  struct control call = {client.handle, object, command, 0, (uintptr_t)parameters, size, 0};
  return call_rm(client.file, _IOWR(RM_TYPE, 0x2a, struct control), &call, &call.status);
}

uint32_t rm_make(struct rm_client client, uint32_t parent, uint32_t object, uint32_t object_class, void *parameters,
                 uint32_t size) {
  struct rm_alloc call = {client.handle, parent, object, object_class, (uintptr_t)parameters, 0, size, 0, 0, 0};
  return call_rm(client.file, _IOWR(RM_TYPE, RM_ALLOC, struct rm_alloc), &call, &call.status);
}

uint32_t rm_release(struct rm_client client, uint32_t parent, uint32_t object) {
  struct rm_free call = {client.handle, parent, object, 0};
  return call_rm(client.file, _IOWR(RM_TYPE, RM_FREE, struct rm_free), &call, &call.status);
}

/* Each mapping takes an open file of its own, by which the kernel knows what to map. */
static const void *map(struct rm_client client, uint32_t object, size_t size) {
  char path[32];
  snprintf(path, sizeof path, "/proc/self/fd/%d", client.file);
  int file = open(path, O_RDWR | O_CLOEXEC);
  if (file < 0)
    return NULL;
  struct map_memory call = {.client = client.handle,
                            .device = client.handle,
                            .memory = object,
                            .length = size,
                            .flags = 1 /* read only */,
                            .file = file};
  uint32_t status = call_rm(client.file, _IOWR(RM_TYPE, 0x4e, struct map_memory), &call, &call.status);
  void *memory = status == RM_OK ? mmap(NULL, size, PROT_READ, MAP_SHARED, file, 0) : MAP_FAILED;
  close(file);
  if (memory == MAP_FAILED)
    return NULL;
  madvise(memory, size, MADV_DONTFORK);
  return memory;
}

const void *rm_make_memory(struct rm_client client, uint32_t object, size_t size) {
  struct memory_parameters parameters = {
      .attributes = WRITE_BACK, .attributes2 = USER_READ_ONLY, .size = size, .numa_node = -1};
  if (rm_make(client, client.handle, object, RM_CLASS_MEMORY, &parameters, sizeof parameters) != RM_OK)
    return NULL;
  const void *memory = map(client, object, size);
  if (memory == NULL)
    rm_release(client, client.handle, object);
  return memory;
}

void rm_free_memory(struct rm_client client, uint32_t object, const void *memory, size_t size) {
  if (memory == NULL)
    return;
  munmap((void *)memory, size);
  rm_release(client, client.handle, object);
}

uint32_t rm_ask_idle(struct rm_client client, uint32_t device, const uint32_t channels[], uint32_t count) {
  uint32_t clients[RM_MOST_CHANNELS], devices[RM_MOST_CHANNELS];
  for (uint32_t i = 0; i < count; i++) {
    clients[i] = client.handle;
    devices[i] = device;
  }
  struct idle_channels call = {.client = client.handle,
                               .device = device,
                               .channel = channels[0],
                               .count = count,
                               .clients = (uintptr_t)clients,
                               .devices = (uintptr_t)devices,
                               .channels = (uintptr_t)channels,
                               .flags = 3 /* force a check */ | 7u << 8 /* lists are the caller's */,
                               .timeout_us = LOOKS_FOR_US};
  return call_rm(client.file, _IOWR(RM_TYPE, 0x41, struct idle_channels), &call, &call.status);
}
