/* Room for memory: reserve, then allocate, then commit or undo. */
#pragma once

#include "device/devices.h"
#include "device/process.h"

/* Counts bytes on the device, or answers CUDA_ERROR_OUT_OF_MEMORY. The driver is called next, and its answer goes to
 * memory_commit or memory_cancel. A NULL device counts nothing: the driver will answer with an error of its own. */
CUresult memory_reserve(struct device *device, uint64_t bytes);

/* Counts bytes if they fit; makes no last attempt to find room, and explains nothing. */
bool memory_try_reserve(struct device *device, uint64_t bytes);

/* Counts bytes of data, with a last attempt to find room, and explains nothing. Where the host can serve data as well,
 * the device keeps room for modules, which it cannot. */
bool memory_make_room_for_data(struct device *device, uint64_t bytes);

/* Counts bytes of data as memory_make_room_for_data does, without the last attempt. */
bool memory_try_reserve_data(struct device *device, uint64_t bytes);

/* Settles a reservation for which the driver has taken actual_bytes. */
void memory_commit(struct device *device, uint64_t reserved_bytes, uint64_t actual_bytes);

/* Settles a reservation for which it has taken nothing. */
void memory_cancel(struct device *device, uint64_t reserved_bytes);

/* Counts bytes that were not reserved. */
void memory_add(struct device *device, uint64_t bytes);

/* Counts bytes no longer that the driver has back. */
void memory_release(struct device *device, uint64_t bytes);

/* Around a call that may give bytes back to the driver, or LEDGER_UNKNOWN_BYTES, of a device or of one that is not
 * known (NULL). Between the two, memory_release tells what it has given back. */
static inline void memory_begin_leaving(const struct device *device, uint64_t bytes) {
  ledger_begin_leaving(process_ledger(), device != NULL ? device->number : LEDGER_SOME_DEVICE, bytes);
}

static inline void memory_end_leaving(const struct device *device, uint64_t bytes) {
  ledger_end_leaving(process_ledger(), device != NULL ? device->number : LEDGER_SOME_DEVICE, bytes);
}

/* The managed part of the counted bytes. */
void memory_add_managed(struct device *device, uint64_t bytes);
void memory_release_managed(struct device *device, uint64_t bytes);

/* Does the container hold more than its limit? */
bool memory_is_over(struct device *device);

/* Counts a refusal, and explains the first one. */
CUresult memory_refuse(const struct device *device, uint64_t bytes);

/* May the host serve what the device has no room for? */
bool memory_may_be_served(const struct device *device);

/*
 * Things whose memory the driver does not tell beforehand: they are made, NVML is asked what the process holds then,
 * and what passes the limit is undone. They are counted as overhead.
 *
 *   while (measured_begin(&measured))
 *     if (measured_passes_limit(&measured, make()))
 *       undo();
 *   return measured.result;
 */

struct measured_allocation {
  struct device *device; /* NULL: not limited */
  uint64_t room_bytes;   /* reserved meanwhile: what is surely needed, so that something large is not made at all */
  uint64_t overhead_before_bytes, overhead_bytes;
  CUresult result; /* for the program */
  int trials;
  bool is_undone;
};

/* The device of the current context, if this process is limited; else NULL. */
struct device *measured_device(void);

static inline struct measured_allocation measured_allocation(struct device *device, uint64_t at_least_bytes) {
  return (struct measured_allocation){.device = device, .room_bytes = ledger_driver_size(at_least_bytes)};
}

/* Has this process nothing on the device, so that NVML was never asked? */
bool memory_is_untouched(const struct device *device);

/* For the first time, or once more since it was undone? */
static inline bool measured_is_to_be_made(const struct measured_allocation *measured) {
  return measured->trials == 0 || measured->is_undone;
}

/* Is it to be made? After it was undone it is made once more if there is room for as much as it took: others that
 * were in its way may have been undone as well. */
bool measured_begin(struct measured_allocation *measured);

/* Counts what the driver has made. */
void measured_count(struct measured_allocation *measured, CUresult result);

/* Does it have to be undone? */
bool measured_is_over(struct measured_allocation *measured);

static inline bool measured_passes_limit(struct measured_allocation *measured, CUresult result) {
  measured_count(measured, result);
  return measured_is_over(measured);
}

/* After something of this kind was given back. */
CUresult measured_undone(struct device *device, CUresult result);

/* The body of a function that makes something on a device, and writes its handle to its first parameter. */
#define MEASURED_HOOK_ON(found, name, handle, destroy, at_least_bytes, parameters, ...)                                \
  HOOK CUresult name parameters {                                                                                      \
    struct device *device = (found);                                                                                   \
    if (device == NULL || (handle) == NULL)                                                                            \
      return real.name(handle, __VA_ARGS__);                                                                           \
    struct measured_allocation measured = measured_allocation(device, at_least_bytes);                                 \
    __typeof__(*(handle)) made = 0;                                                                                    \
    while (measured_begin(&measured))                                                                                  \
      if (measured_passes_limit(&measured, real.name(&made, __VA_ARGS__)))                                             \
        real.destroy(made);                                                                                            \
    if (measured.result == CUDA_SUCCESS)                                                                               \
      *(handle) = made;                                                                                                \
    return measured.result;                                                                                            \
  }

/* The same in the current context. */
#define MEASURED_HOOK(name, ...) MEASURED_HOOK_ON(measured_device(), name, __VA_ARGS__)

/* What a stream needs room for. Measured on driver 580: it takes half a MiB, of blocks that its context keeps when the
 * stream is gone: nothing is undone then. So there has to be room for a block, whether or not it will need one. */
#define STREAM_BYTES LEDGER_BLOCK_BYTES
