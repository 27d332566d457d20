/*
 * Calls of the driver's resource manager (RM), which libcuda makes by ioctl on /dev/nvidiactl. Layouts and numbers are
 * those of NVIDIA's open kernel modules (src/common/sdk/nvidia/inc, nvos.h and ctrl/), where they are declared for all
 * users. A client's objects obey its own open file alone.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define RM_OK 0u
#define RM_NOT_CALLED 0xffffffffu /* the kernel refused the call itself */
#define RM_BUSY 0x65u

#define RM_CLASS_DEVICE 0x80u
#define RM_CLASS_SUBDEVICE 0x2080u
#define RM_CLASS_GROUP 0xa06cu
#define RM_CLASS_MEMORY 0x90ceu
#define RM_CLASS_EVENT_BUFFER 0x90cdu
#define RM_ENGINE_COMPUTE 1u

#define RM_IS_CHANNEL(object_class)                                                                                    \
  (((object_class) & 0xff) == 0x6f && (object_class) > 0xa000 && (object_class) < 0xe000)

struct rm_alloc {
  uint32_t root, parent, object, object_class;
  uint64_t parameters, rights;
  uint32_t size, flags, status, padding;
};
struct rm_short_alloc {
  uint32_t root, parent, object, object_class;
  uint64_t parameters;
  uint32_t size, status;
};
struct rm_free {
  uint32_t root, parent, object, status;
};
struct rm_group_parameters {
  uint32_t error, ecc_error, address_space, engine;
};

#define RM_REQUEST_TYPE(request) (((request) >> 8) & 0xff)
#define RM_REQUEST_NUMBER(request) ((request) & 0xff)
#define RM_REQUEST_SIZE(request) (((request) >> 16) & 0x3fff)
#define RM_TYPE 'F'
#define RM_FREE 0x29
#define RM_ALLOC 0x2b

/* How the driver is called: the C library's ioctl, or that of a simulated driver (entry/ioctl.c). */
extern int (*rm_ioctl)(int file, unsigned long request, void *argument);

struct rm_client {
  int file;
  uint32_t handle;
};

/* Each returns RM_OK, or the driver's status. */
uint32_t rm_control(struct rm_client client, uint32_t object, uint32_t command, void *parameters, uint32_t size);
uint32_t rm_make(struct rm_client client, uint32_t parent, uint32_t object, uint32_t object_class, void *parameters,
                 uint32_t size);
uint32_t rm_release(struct rm_client client, uint32_t parent, uint32_t object);

/* Memory of the driver that this process reads, and a forked child does not have: NULL where that cannot be had. */
const void *rm_make_memory(struct rm_client client, uint32_t object, size_t size);
void rm_free_memory(struct rm_client client, uint32_t object, const void *memory, size_t size);

#define RM_MOST_CHANNELS 64 /* of a call */

/* Has any of the channels had work for a quarter of a millisecond? RM_BUSY, RM_OK, or what went wrong. */
uint32_t rm_ask_idle(struct rm_client client, uint32_t device, const uint32_t channels[], uint32_t count);
