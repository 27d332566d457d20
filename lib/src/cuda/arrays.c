/* Arrays: their size is the driver's secret (layout, padding), so they are made and looked at. */
#include "cuda/reserve.h"

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

/* The extents of the four descriptors are written alike, but their types differ. */
#define EXTENT_2D(d) ((struct extent){(d)->Width, (d)->Height, 0, (d)->NumChannels, (d)->Format, 0})
#define EXTENT_3D(d) ((struct extent){(d)->Width, (d)->Height, (d)->Depth, (d)->NumChannels, (d)->Format, (d)->Flags})
#define LEAST_BYTES(descriptor, extent_of) ((descriptor) != NULL ? least_bytes(extent_of(descriptor)) : 0)

#define CREATE_ARRAY(name, descriptor_type, extent_of)                                                                 \
  MEASURED_HOOK(name, array, cuArrayDestroy, LEAST_BYTES(descriptor, extent_of),                                       \
                (CUarray * array, const descriptor_type *descriptor), descriptor)

CREATE_ARRAY(cuArrayCreate, CUDA_ARRAY_DESCRIPTOR_v1, EXTENT_2D)
CREATE_ARRAY(cuArrayCreate_v2, CUDA_ARRAY_DESCRIPTOR, EXTENT_2D)
CREATE_ARRAY(cuArray3DCreate, CUDA_ARRAY3D_DESCRIPTOR_v1, EXTENT_3D)
CREATE_ARRAY(cuArray3DCreate_v2, CUDA_ARRAY3D_DESCRIPTOR, EXTENT_3D)

MEASURED_HOOK(cuMipmappedArrayCreate, array, cuMipmappedArrayDestroy, LEAST_BYTES(descriptor, EXTENT_3D),
              (CUmipmappedArray * array, const CUDA_ARRAY3D_DESCRIPTOR *descriptor, unsigned levels), descriptor,
              levels)

HOOK CUresult cuArrayDestroy(CUarray array) {
  struct device *device = measured_device();
  return measured_undone(device, real.cuArrayDestroy(array));
}

HOOK CUresult cuMipmappedArrayDestroy(CUmipmappedArray array) {
  struct device *device = measured_device();
  return measured_undone(device, real.cuMipmappedArrayDestroy(array));
}
