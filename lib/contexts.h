/* What contexts take of a device when they are made, told apart from the rest of the overhead, and given back with
 * them.
 */
#ifndef VGPU_CONTEXTS_H
#define VGPU_CONTEXTS_H

#include "devices.h"

/* A context has been made, before which device_uncounted_bytes was before_bytes. Asks NVML; its answer counts from the
 * next correction on. */
void contexts_made(struct device *device, CUcontext context, uint64_t before_bytes);

/* It is gone, and NVML will be asked next. */
void contexts_ended(const struct device *device, CUcontext context);

/* In a forked child. */
void contexts_forget(void);

#endif
