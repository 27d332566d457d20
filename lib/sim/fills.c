/* cuMemset and its variants: elements of 1, 2 or 4 bytes, in one row or in several. */
#include <string.h>

#include "capture.h"
#include "managed.h"
#include "stream_work.h"
#include "transfers.h"

struct fill {
  uintptr_t to;
  size_t pitch; /* bytes from row to row */
  size_t width; /* elements of a row */
  size_t height;
  uint32_t value;
  size_t element_bytes;
};

static bool extent_of(const struct fill *fill, size_t *bytes) {
  size_t row, before_last;
  return !__builtin_mul_overflow(fill->width, fill->element_bytes, &row) && (fill->height == 1 || fill->pitch >= row) &&
         !__builtin_mul_overflow(fill->pitch, fill->height - 1, &before_last) &&
         !__builtin_add_overflow(before_last, row, bytes);
}

static void write_row(char *row, const struct fill *fill) {
  if (fill->element_bytes == 1) {
    memset(row, (int)fill->value, fill->width);
    return;
  }
  for (size_t i = 0; i < fill->width; i++)
    memcpy(row + i * fill->element_bytes, &fill->value, fill->element_bytes); /* little endian */
}

static CUresult run(struct fill fill, CUstream handle, enum default_stream default_stream) {
  struct stream *stream;
  size_t extent;
  uint64_t end_ns;
  FORWARD_IF_ERROR(stream_enter(handle, default_stream, &stream));
  if (fill.width == 0 || fill.height == 0)
    return driver_leave(CUDA_SUCCESS);
  if (!extent_of(&fill, &extent) || fill.to % fill.element_bytes || !transfer_is_ours(fill.to, extent))
    return driver_leave(CUDA_ERROR_INVALID_VALUE);
  uint64_t bytes = (uint64_t)fill.width * fill.height * fill.element_bytes;
  uint64_t rate = sim_config.devices[stream->context->device].memory_bytes_per_ms;
  CUresult result = transfer_queue(stream, CU_GRAPH_NODE_TYPE_MEMSET, transfer_ns(bytes, rate), &end_ns);
  if (end_ns)
    managed_touch(fill.to, stream->context->device);
  if (end_ns && transfer_keeps_data(fill.to))
    for (size_t row = 0; row < fill.height; row++)
      write_row((char *)fill.to + row * fill.pitch, &fill);
  return driver_leave(result);
}

#define FILL(bits, type)                                                                                               \
  static CUresult cuMemsetD##bits##Async_on(CUdeviceptr to, type value, size_t count, CUstream stream,                 \
                                            enum default_stream default_stream) {                                      \
    return run((struct fill){to, 0, count, 1, value, sizeof(type)}, stream, default_stream);                           \
  }                                                                                                                    \
  static CUresult cuMemsetD2D##bits##Async_on(CUdeviceptr to, size_t pitch, type value, size_t width, size_t height,   \
                                              CUstream stream, enum default_stream default_stream) {                   \
    return run((struct fill){to, pitch, width, height, value, sizeof(type)}, stream, default_stream);                  \
  }                                                                                                                    \
  static CUresult cuMemsetD##bits##_v2_on(CUdeviceptr to, type value, size_t count,                                    \
                                          enum default_stream default_stream) {                                        \
    return cuMemsetD##bits##Async_on(to, value, count, NULL, default_stream);                                          \
  }                                                                                                                    \
  static CUresult cuMemsetD2D##bits##_v2_on(CUdeviceptr to, size_t pitch, type value, size_t width, size_t height,     \
                                            enum default_stream default_stream) {                                      \
    return cuMemsetD2D##bits##Async_on(to, pitch, value, width, height, NULL, default_stream);                         \
  }

FILL(8, unsigned char)
FILL(16, unsigned short)
FILL(32, unsigned int)

STREAM_API(cuMemsetD8_v2, cuMemsetD8_v2_ptds, (CUdeviceptr to, unsigned char value, size_t count), to, value, count)
STREAM_API(cuMemsetD16_v2, cuMemsetD16_v2_ptds, (CUdeviceptr to, unsigned short value, size_t count), to, value, count)
STREAM_API(cuMemsetD32_v2, cuMemsetD32_v2_ptds, (CUdeviceptr to, unsigned int value, size_t count), to, value, count)
STREAM_API(cuMemsetD8Async, cuMemsetD8Async_ptsz, (CUdeviceptr to, unsigned char value, size_t count, CUstream stream),
           to, value, count, stream)
STREAM_API(cuMemsetD16Async, cuMemsetD16Async_ptsz,
           (CUdeviceptr to, unsigned short value, size_t count, CUstream stream), to, value, count, stream)
STREAM_API(cuMemsetD32Async, cuMemsetD32Async_ptsz, (CUdeviceptr to, unsigned int value, size_t count, CUstream stream),
           to, value, count, stream)
STREAM_API(cuMemsetD2D8_v2, cuMemsetD2D8_v2_ptds,
           (CUdeviceptr to, size_t pitch, unsigned char value, size_t width, size_t height), to, pitch, value, width,
           height)
STREAM_API(cuMemsetD2D16_v2, cuMemsetD2D16_v2_ptds,
           (CUdeviceptr to, size_t pitch, unsigned short value, size_t width, size_t height), to, pitch, value, width,
           height)
STREAM_API(cuMemsetD2D32_v2, cuMemsetD2D32_v2_ptds,
           (CUdeviceptr to, size_t pitch, unsigned int value, size_t width, size_t height), to, pitch, value, width,
           height)
STREAM_API(cuMemsetD2D8Async, cuMemsetD2D8Async_ptsz,
           (CUdeviceptr to, size_t pitch, unsigned char value, size_t width, size_t height, CUstream stream), to, pitch,
           value, width, height, stream)
STREAM_API(cuMemsetD2D16Async, cuMemsetD2D16Async_ptsz,
           (CUdeviceptr to, size_t pitch, unsigned short value, size_t width, size_t height, CUstream stream), to,
           pitch, value, width, height, stream)
STREAM_API(cuMemsetD2D32Async, cuMemsetD2D32Async_ptsz,
           (CUdeviceptr to, size_t pitch, unsigned int value, size_t width, size_t height, CUstream stream), to, pitch,
           value, width, height, stream)
