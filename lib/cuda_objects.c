/*
 * Arrays and contexts: the driver does not say beforehand how much memory they take. So they are made, NVML is asked
 * what the process holds then, and what passes the limit is undone and refused. They are counted as overhead.
 */
#include "contexts.h"
#include "cuda_launch.h"
#include "cuda_memory.h"
#include "process.h"

struct making {
  struct device *device; /* NULL: not limited */
  uint64_t held_before;
  uint64_t uncounted_before;
  uint64_t reserved_bytes;
};

/* What is surely needed is reserved meanwhile, so that a large array does not come into being at all. */
static CUresult begin(struct making *making, struct device *device, uint64_t at_least_bytes) {
  *making = (struct making){.device = device, .reserved_bytes = at_least_bytes};
  if (device == NULL)
    return CUDA_SUCCESS;
  device_correct_overhead(device, 0);
  making->held_before = device_used_bytes(device);
  making->uncounted_before = device_uncounted_bytes(device);
  return memory_reserve(device, at_least_bytes);
}

/* Does what was made have to be undone? */
static bool passes_limit(const struct making *making, CUresult result) {
  memory_cancel(making->device, making->reserved_bytes);
  return making->device != NULL && result == CUDA_SUCCESS && device_correct_overhead(making->device, 0) &&
         memory_is_over(making->device);
}

/* After that was undone. */
static CUresult refuse(const struct making *making) {
  uint64_t held_bytes = device_used_bytes(making->device);
  device_correct_overhead(making->device, 0);
  return memory_refuse(making->device, held_bytes > making->held_before ? held_bytes - making->held_before : 0);
}

static struct device *current_device(void) {
  return process_is_limited() ? device_of_current_context() : NULL;
}

static CUresult after_freeing(struct device *device, CUresult result) {
  if (device != NULL && result == CUDA_SUCCESS)
    device_correct_overhead(device, 0);
  return result;
}

/* ---- arrays ---------------------------------------------------------------------------------------------------- */

/* The bytes of one channel; 0 for formats whose texels are compressed or spread over planes. */
static uint64_t channel_bytes(CUarray_format format) {
  switch (format) {
  case CU_AD_FORMAT_UNSIGNED_INT8:
  case CU_AD_FORMAT_SIGNED_INT8:
    return 1;
  case CU_AD_FORMAT_UNSIGNED_INT16:
  case CU_AD_FORMAT_SIGNED_INT16:
  case CU_AD_FORMAT_HALF:
    return 2;
  case CU_AD_FORMAT_UNSIGNED_INT32:
  case CU_AD_FORMAT_SIGNED_INT32:
  case CU_AD_FORMAT_FLOAT:
    return 4;
  default:
    return 0;
  }
}

struct extent {
  uint64_t width, height, depth, channels;
  CUarray_format format;
  unsigned flags;
};

#define WITHOUT_MEMORY (CUDA_ARRAY3D_SPARSE | CUDA_ARRAY3D_DEFERRED_MAPPING)

static uint64_t least_bytes(struct extent extent) {
  if (extent.flags & WITHOUT_MEMORY)
    return 0;
  uint64_t bytes = channel_bytes(extent.format) * extent.channels;
  const uint64_t sides[] = {extent.width, extent.height, extent.depth};
  for (int i = 0; i < 3; i++)
    if (sides[i] > 0 && __builtin_mul_overflow(bytes, sides[i], &bytes))
      return UINT64_MAX;
  return bytes;
}

static CUresult end_array(const struct making *making, CUresult result, CUarray array, CUarray *output) {
  if (passes_limit(making, result)) {
    real.cuArrayDestroy(array);
    return refuse(making);
  }
  if (result == CUDA_SUCCESS)
    *output = array;
  return result;
}

/* The extents of the four descriptors are written alike, but their types differ. */
#define EXTENT_2D(d) ((struct extent){(d)->Width, (d)->Height, 0, (d)->NumChannels, (d)->Format, 0})
#define EXTENT_3D(d) ((struct extent){(d)->Width, (d)->Height, (d)->Depth, (d)->NumChannels, (d)->Format, (d)->Flags})

#define CREATE_ARRAY(name, descriptor_type, extent_of)                                                                 \
  HOOK CUresult name(CUarray *array, const descriptor_type *descriptor) {                                              \
    struct device *device = current_device();                                                                          \
    if (device == NULL || array == NULL || descriptor == NULL)                                                         \
      return real.name(array, descriptor);                                                                             \
    struct making making;                                                                                              \
    CUarray made = NULL;                                                                                               \
    CUresult result = begin(&making, device, least_bytes(extent_of(descriptor)));                                      \
    if (result != CUDA_SUCCESS)                                                                                        \
      return result;                                                                                                   \
    result = real.name(&made, descriptor);                                                                             \
    return end_array(&making, result, made, array);                                                                    \
  }

CREATE_ARRAY(cuArrayCreate, CUDA_ARRAY_DESCRIPTOR_v1, EXTENT_2D)
CREATE_ARRAY(cuArrayCreate_v2, CUDA_ARRAY_DESCRIPTOR, EXTENT_2D)
CREATE_ARRAY(cuArray3DCreate, CUDA_ARRAY3D_DESCRIPTOR_v1, EXTENT_3D)
CREATE_ARRAY(cuArray3DCreate_v2, CUDA_ARRAY3D_DESCRIPTOR, EXTENT_3D)

HOOK CUresult cuMipmappedArrayCreate(CUmipmappedArray *array, const CUDA_ARRAY3D_DESCRIPTOR *d, unsigned levels) {
  struct device *device = current_device();
  if (device == NULL || array == NULL || d == NULL)
    return real.cuMipmappedArrayCreate(array, d, levels);
  struct making making;
  CUmipmappedArray made = NULL;
  CUresult result = begin(&making, device, least_bytes(EXTENT_3D(d)));
  if (result != CUDA_SUCCESS)
    return result;
  result = real.cuMipmappedArrayCreate(&made, d, levels);
  if (passes_limit(&making, result)) {
    real.cuMipmappedArrayDestroy(made);
    return refuse(&making);
  }
  if (result == CUDA_SUCCESS)
    *array = made;
  return result;
}

HOOK CUresult cuArrayDestroy(CUarray array) {
  struct device *device = current_device();
  return after_freeing(device, real.cuArrayDestroy(array));
}

HOOK CUresult cuMipmappedArrayDestroy(CUmipmappedArray array) {
  struct device *device = current_device();
  return after_freeing(device, real.cuMipmappedArrayDestroy(array));
}

/* ---- contexts -------------------------------------------------------------------------------------------------- */

static CUresult begin_context(struct making *making, CUdevice ordinal) {
  return begin(making, process_is_limited() ? device_of_ordinal(ordinal) : NULL, 0);
}

static void count_context(const struct making *making, CUresult result, const CUcontext *context) {
  if (making->device != NULL && result == CUDA_SUCCESS)
    contexts_made(making->device, *context, making->uncounted_before);
}

static CUresult end_context(const struct making *making, CUresult result, CUcontext *context) {
  count_context(making, result, context);
  if (!passes_limit(making, result))
    return result;
  real.cuCtxDestroy_v2(*context);
  contexts_ended(making->device, *context);
  *context = NULL;
  return refuse(making);
}

HOOK CUresult cuCtxCreate(CUcontext *context, unsigned int flags, CUdevice ordinal) {
  struct making making;
  CUresult result = begin_context(&making, ordinal);
  return result != CUDA_SUCCESS ? result : end_context(&making, real.cuCtxCreate(context, flags, ordinal), context);
}

HOOK CUresult cuCtxCreate_v2(CUcontext *context, unsigned int flags, CUdevice ordinal) {
  struct making making;
  CUresult result = begin_context(&making, ordinal);
  return result != CUDA_SUCCESS ? result : end_context(&making, real.cuCtxCreate_v2(context, flags, ordinal), context);
}

HOOK CUresult cuCtxCreate_v3(CUcontext *context, CUexecAffinityParam *parameters, int count, unsigned int flags,
                             CUdevice ordinal) {
  struct making making;
  CUresult result = begin_context(&making, ordinal);
  if (result == CUDA_SUCCESS)
    result = end_context(&making, real.cuCtxCreate_v3(context, parameters, count, flags, ordinal), context);
  return result;
}

HOOK CUresult cuCtxCreate_v4(CUcontext *context, CUctxCreateParams *parameters, unsigned int flags, CUdevice ordinal) {
  struct making making;
  CUresult result = begin_context(&making, ordinal);
  if (result == CUDA_SUCCESS)
    result = end_context(&making, real.cuCtxCreate_v4(context, parameters, flags, ordinal), context);
  return result;
}

/* The primary context comes into being with the first reference; a further one takes nothing. */
HOOK CUresult cuDevicePrimaryCtxRetain(CUcontext *context, CUdevice ordinal) {
  struct making making = {0};
  bool limited = process_is_limited();
  CUresult result = limited && !device_primary_is_active(ordinal) ? begin_context(&making, ordinal) : CUDA_SUCCESS;
  if (result != CUDA_SUCCESS)
    return result;
  CUcontext made = NULL;
  result = real.cuDevicePrimaryCtxRetain(context != NULL ? &made : NULL, ordinal);
  count_context(&making, result, &made);
  if (passes_limit(&making, result)) {
    real.cuDevicePrimaryCtxRelease_v2(ordinal);
    contexts_ended(making.device, made);
    return refuse(&making);
  }
  if (result != CUDA_SUCCESS)
    return result;
  struct device *device = limited ? device_of_ordinal(ordinal) : NULL;
  if (device != NULL)
    __atomic_store_n(&device->primary_context, made, __ATOMIC_RELAXED);
  *context = made;
  return CUDA_SUCCESS;
}

/* ---- the end of contexts ---------------------------------------------------------------------------------------- */

static struct device *device_of_context(CUcontext context) {
  CUcontext popped;
  if (real.cuCtxPushCurrent_v2(context) != CUDA_SUCCESS)
    return NULL;
  struct device *device = device_of_current_context();
  real.cuCtxPopCurrent_v2(&popped);
  return device;
}

static CUresult destroy_context(CUcontext context, CUresult (*destroy)(CUcontext)) {
  if (!process_is_limited())
    return destroy(context);
  struct device *device = device_of_context(context);
  launch_forget_context(context);
  device_contexts_change();
  CUresult result = destroy(context);
  if (result == CUDA_SUCCESS)
    memory_forget_context(device, context);
  return result;
}

HOOK CUresult cuCtxDestroy(CUcontext context) {
  hooks_load_cuda();
  return destroy_context(context, real.cuCtxDestroy);
}

HOOK CUresult cuCtxDestroy_v2(CUcontext context) {
  hooks_load_cuda();
  return destroy_context(context, real.cuCtxDestroy_v2);
}

/* A release ends the primary context with the last reference, a reset at once. */
static CUresult release_primary(CUdevice ordinal, CUresult (*release)(CUdevice)) {
  if (!process_is_limited())
    return release(ordinal);
  device_contexts_change();
  CUresult result = process_limits_compute() ? launch_release_primary(ordinal, release) : release(ordinal);
  struct device *device = result == CUDA_SUCCESS ? device_of_ordinal(ordinal) : NULL;
  if (device != NULL && !device_primary_is_active(ordinal))
    memory_forget_context(device, __atomic_load_n(&device->primary_context, __ATOMIC_RELAXED));
  return result;
}

#define RELEASE_PRIMARY(name)                                                                                          \
  HOOK CUresult name(CUdevice ordinal) {                                                                               \
    hooks_load_cuda();                                                                                                 \
    return release_primary(ordinal, real.name);                                                                        \
  }

RELEASE_PRIMARY(cuDevicePrimaryCtxRelease)
RELEASE_PRIMARY(cuDevicePrimaryCtxRelease_v2)
RELEASE_PRIMARY(cuDevicePrimaryCtxReset)
RELEASE_PRIMARY(cuDevicePrimaryCtxReset_v2)
