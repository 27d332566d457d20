/* What the bodies of the memory hooks share: reserve, then allocate, then commit or undo. */
#ifndef VGPU_CUDA_MEMORY_H
#define VGPU_CUDA_MEMORY_H

#include "devices.h"

/* Counts bytes on the device, or answers CUDA_ERROR_OUT_OF_MEMORY. The driver is called next, and its answer goes to
 * memory_commit or memory_cancel. A NULL device counts nothing: the driver will answer with an error of its own. */
CUresult memory_reserve(struct device *device, uint64_t bytes);

/* The same without a last attempt to make room, and without a word: false when it does not fit. */
bool memory_try_reserve(struct device *device, uint64_t bytes);

/* The same two for data, which the host may serve as well. Then the device keeps room for what it cannot. */
bool memory_make_room_for_data(struct device *device, uint64_t bytes);
bool memory_try_reserve_data(struct device *device, uint64_t bytes);

/* The driver has taken actual_bytes, or nothing, for what was reserved. */
void memory_commit(struct device *device, uint64_t reserved_bytes, uint64_t actual_bytes);
void memory_cancel(struct device *device, uint64_t reserved_bytes);

/* What is counted without a reservation, and what the driver has back. */
void memory_add(struct device *device, uint64_t bytes);
void memory_release(struct device *device, uint64_t bytes);
void memory_add_managed(struct device *device, uint64_t bytes);
void memory_release_managed(struct device *device, uint64_t bytes);

/* Does the container hold more than its limit? */
bool memory_is_over(struct device *device);

/* For a refusal: counted, and explained once. */
CUresult memory_refuse(const struct device *device, uint64_t bytes);

/* May the host serve what the device has no room for? */
bool memory_may_be_served(const struct device *device);

/* An allocation that the device's share has no room for: served by the host, or refused. */
CUresult memory_allocate_on_host(const struct current *current, CUdeviceptr *pointer, size_t size, unsigned flags);

/* The context is gone, and its allocations with it. */
void memory_forget_context(struct device *device, CUcontext context);

/* Memory that pools of the device keep in reserve: reread, or first given back to the driver. */
enum pools { POOLS_REREAD, POOLS_TRIM };
void pools_settle(struct device *device, enum pools what);
void pools_after_wait(void);

/* In a forked child. */
void memory_forget(void);
void pools_forget(void);
void vmm_forget(void);

#endif
