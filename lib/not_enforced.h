/* What cannot be enforced says so: in the usage file, for `vgpurun smi`. Whoever notes it also writes a line on stderr.
 */
#ifndef VGPU_NOT_ENFORCED_H
#define VGPU_NOT_ENFORCED_H

#include "abi.h"

/* One of VGPU_NOT_ENFORCED_*. It stays until the file is made anew. */
static inline void not_enforced(struct vgpu_device_shared *device, uint32_t what) {
  if ((__atomic_load_n(&device->not_enforced, __ATOMIC_RELAXED) & what) == 0)
    __atomic_fetch_or(&device->not_enforced, what, __ATOMIC_RELAXED);
}

#endif
