/* CUDA arrays: they cost device memory, and nothing can be read from them. */
#include "arrays.h"

#include <stdlib.h>

#include "bindings.h"
#include "capture.h"
#include "device_memory.h"
#include "pools.h"
#include "state.h"

#define ROW_ALIGNMENT 2048 /* fits what a card takes for wide and for narrow rows */

struct array {
  void *handle;
  const struct context *context;
  uint64_t charged_bytes;
  struct binding *tiles; /* a sparse array's */
  CUDA_ARRAY3D_DESCRIPTOR descriptor;
};

static unsigned format_bytes(CUarray_format format) {
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

/* False when the size does not fit a number. */
static bool level_bytes(uint64_t width, uint64_t height, uint64_t depth, unsigned element_bytes, uint64_t *bytes) {
  uint64_t row;
  if (__builtin_mul_overflow(width, element_bytes, &row) || row > UINT64_MAX - ROW_ALIGNMENT)
    return false;
  row = round_up(row, ROW_ALIGNMENT);
  return !__builtin_mul_overflow(row, height ? height : 1, bytes) &&
         !__builtin_mul_overflow(*bytes, depth ? depth : 1, bytes);
}

static CUresult size_of(const CUDA_ARRAY3D_DESCRIPTOR *descriptor, unsigned levels, uint64_t *bytes) {
  unsigned channels = descriptor->NumChannels;
  unsigned element_bytes = format_bytes(descriptor->Format) * channels;
  if (element_bytes == 0)
    return format_bytes(descriptor->Format) ? CUDA_ERROR_INVALID_VALUE : CUDA_ERROR_NOT_SUPPORTED;
  if (descriptor->Width == 0 || (channels != 1 && channels != 2 && channels != 4))
    return CUDA_ERROR_INVALID_VALUE;
  *bytes = 0;
  for (unsigned level = 0; level < levels; level++) {
    uint64_t level_size;
    if (!level_bytes(max_u64(1, descriptor->Width >> level), descriptor->Height >> level, descriptor->Depth >> level,
                     element_bytes, &level_size) ||
        __builtin_add_overflow(*bytes, level_size, bytes) || *bytes > UINT64_MAX / 2)
      return CUDA_ERROR_OUT_OF_MEMORY;
  }
  *bytes = round_up(*bytes, DEVICE_PAGE);
  return CUDA_SUCCESS;
}

/* Its memory is mapped to it, tile by tile. */
static bool is_sparse(const CUDA_ARRAY3D_DESCRIPTOR *descriptor) {
  return descriptor->Flags & (CUDA_ARRAY3D_SPARSE | CUDA_ARRAY3D_DEFERRED_MAPPING);
}

static CUresult create(enum handle_kind kind, void **handle, const CUDA_ARRAY3D_DESCRIPTOR *descriptor,
                       unsigned levels) {
  struct context *context;
  uint64_t bytes;
  FORWARD_IF_ERROR(context_enter(&context));
  if (!handle || !descriptor || levels == 0 || levels > 32)
    return driver_leave(CUDA_ERROR_INVALID_VALUE);
  CUresult result = capture_check_unsafe_call();
  if (result == CUDA_SUCCESS)
    result = size_of(descriptor, levels, &bytes);
  if (is_sparse(descriptor))
    bytes = 0;
  if (result != CUDA_SUCCESS)
    return driver_leave(result);
  if (!pools_take_memory(context->device, bytes))
    return driver_leave(CUDA_ERROR_OUT_OF_MEMORY);
  struct array *array = calloc(1, sizeof *array);
  void *new_handle = array ? handle_new(kind, array) : NULL;
  if (!new_handle) {
    free(array);
    state_release(context->device, bytes);
    return driver_leave(CUDA_ERROR_OUT_OF_MEMORY);
  }
  *array = (struct array){new_handle, context, bytes, NULL, *descriptor};
  *handle = new_handle;
  return driver_leave(CUDA_SUCCESS);
}

struct binding **array_tiles(enum handle_kind kind, const void *handle) {
  struct array *array = handle_object(kind, handle);
  return array && is_sparse(&array->descriptor) ? &array->tiles : NULL;
}

static void delete_array(struct array *array) {
  bindings_end(&array->tiles);
  state_release(array->context->device, array->charged_bytes);
  handle_delete(array->handle);
  free(array);
}

static void delete_if_of(void *object, void *context) {
  struct array *array = object;
  if (array->context == context)
    delete_array(array);
}

void arrays_delete_of(const struct context *context) {
  handle_visit(HANDLE_ARRAY, delete_if_of, (void *)context);
  handle_visit(HANDLE_MIPMAPPED_ARRAY, delete_if_of, (void *)context);
}

static CUresult destroy(enum handle_kind kind, const void *handle) {
  FORWARD_IF_ERROR(driver_enter());
  struct array *array = handle_object(kind, handle);
  if (!array)
    return driver_leave(CUDA_ERROR_INVALID_HANDLE);
  CUresult result = capture_check_unsafe_call();
  if (result == CUDA_SUCCESS)
    delete_array(array);
  return driver_leave(result);
}

CUresult CUDAAPI cuArray3DCreate_v2(CUarray *handle, const CUDA_ARRAY3D_DESCRIPTOR *descriptor) {
  return create(HANDLE_ARRAY, (void **)handle, descriptor, 1);
}

/* The other descriptors have less, or older types. */
#define CREATE_ARRAY(name, descriptor_type, ...)                                                                       \
  CUresult CUDAAPI name(CUarray *handle, const descriptor_type *descriptor) {                                          \
    if (!descriptor)                                                                                                   \
      return cuArray3DCreate_v2(handle, NULL);                                                                         \
    CUDA_ARRAY3D_DESCRIPTOR whole = {.Width = descriptor->Width,                                                       \
                                     .Height = descriptor->Height,                                                     \
                                     .Format = descriptor->Format,                                                     \
                                     .NumChannels = descriptor->NumChannels,                                           \
                                     __VA_ARGS__};                                                                     \
    return cuArray3DCreate_v2(handle, &whole);                                                                         \
  }

CREATE_ARRAY(cuArrayCreate, CUDA_ARRAY_DESCRIPTOR_v1, .Depth = 0)
CREATE_ARRAY(cuArrayCreate_v2, CUDA_ARRAY_DESCRIPTOR, .Depth = 0)
CREATE_ARRAY(cuArray3DCreate, CUDA_ARRAY3D_DESCRIPTOR_v1, .Depth = descriptor->Depth, .Flags = descriptor->Flags)

CUresult CUDAAPI cuArrayDestroy(CUarray handle) {
  return destroy(HANDLE_ARRAY, handle);
}

CUresult CUDAAPI cuMipmappedArrayCreate(CUmipmappedArray *handle, const CUDA_ARRAY3D_DESCRIPTOR *descriptor,
                                        unsigned int levels) {
  return create(HANDLE_MIPMAPPED_ARRAY, (void **)handle, descriptor, levels);
}

CUresult CUDAAPI cuMipmappedArrayDestroy(CUmipmappedArray handle) {
  return destroy(HANDLE_MIPMAPPED_ARRAY, handle);
}

CUresult CUDAAPI cuArray3DGetDescriptor_v2(CUDA_ARRAY3D_DESCRIPTOR *descriptor, CUarray handle) {
  FORWARD_IF_ERROR(driver_enter());
  const struct array *array = handle_object(HANDLE_ARRAY, handle);
  if (!descriptor)
    return driver_leave(CUDA_ERROR_INVALID_VALUE);
  if (!array)
    return driver_leave(CUDA_ERROR_INVALID_HANDLE);
  *descriptor = array->descriptor;
  return driver_leave(CUDA_SUCCESS);
}
