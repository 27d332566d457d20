/* What the bodies of the memory hooks share: reserve, then allocate, then commit or undo. */
#ifndef VGPU_CUDA_MEMORY_H
#define VGPU_CUDA_MEMORY_H

#include "device/devices.h"
#include "device/process.h"

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

/* Around a call that may give bytes back to the driver, or LEDGER_UNKNOWN_BYTES, of a device or of one that is not
 * known (NULL). Between the two, memory_release tells what it has given back. */
static inline void memory_begin_leaving(const struct device *device, uint64_t bytes) {
  ledger_begin_leaving(process_ledger(), device != NULL ? device->number : LEDGER_SOME_DEVICE, bytes);
}

static inline void memory_end_leaving(const struct device *device, uint64_t bytes) {
  ledger_end_leaving(process_ledger(), device != NULL ? device->number : LEDGER_SOME_DEVICE, bytes);
}

/* Of the bytes that are counted. */
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

/* Memory that pools of the device keep in reserve: reread, or first given back to the driver. False when more may be
 * counted now than they have. */
enum pools { POOLS_REREAD, POOLS_TRIM };
bool pools_settle(struct device *device, enum pools what);
void pools_after_wait(void);

#endif
