/* Copies between host and device. The bytes move during the call, the time passes on the device's
 * timeline. */
#include <string.h>

#include "capture.h"
#include "stream_work.h"
#include "synchronize.h"
#include "transfers.h"
#include "visible.h"

/* The kind of memory that each side has to be. Under unified addressing the program need not say. */
enum side { DEVICE, HOST, ANY };

struct copy {
  uintptr_t to, from;
  size_t size;
  enum side to_side, from_side;
};

static bool is_good(uintptr_t address, size_t size, enum side side) {
  if (address == 0)
    return false;
  if (side == DEVICE || (side == ANY && !transfer_keeps_data(address)))
    return transfer_is_ours(address, size);
  return true;
}

/* Data written to a place that keeps none reads as zeros. */
static void move(const struct copy *copy) {
  if (!transfer_keeps_data(copy->to))
    return;
  if (transfer_keeps_data(copy->from))
    memmove((void *)copy->to, (const void *)copy->from, copy->size);
  else
    memset((void *)copy->to, 0, copy->size);
}

static uint64_t duration_ns(const struct stream *stream, const struct copy *copy) {
  const struct device_config *device = &sim_config.devices[stream->context->device];
  bool on_device = transfer_is_ours(copy->to, copy->size) && transfer_is_ours(copy->from, copy->size);
  return transfer_ns(copy->size, on_device ? device->memory_bytes_per_ms : device->copy_bytes_per_ms);
}

static CUresult run(struct copy copy, CUstream handle, bool wait, enum default_stream default_stream) {
  struct stream *stream;
  uint64_t end_ns;
  CUresult result = stream_enter(handle, default_stream, &stream);
  if (result != CUDA_SUCCESS)
    return result;
  if (wait)
    result = capture_check_stream_wait(stream);
  if (result != CUDA_SUCCESS)
    return driver_leave(result);
  if (copy.size == 0)
    return driver_leave(CUDA_SUCCESS);
  if (!is_good(copy.to, copy.size, copy.to_side) || !is_good(copy.from, copy.size, copy.from_side))
    return driver_leave(CUDA_ERROR_INVALID_VALUE);
  result = transfer_queue(stream, CU_GRAPH_NODE_TYPE_MEMCPY, duration_ns(stream, &copy), &end_ns);
  if (end_ns)
    move(&copy);
  return wait && result == CUDA_SUCCESS ? synchronize_and_leave(end_ns) : driver_leave(result);
}

static CUresult cuMemcpyHtoD_v2_on(CUdeviceptr to, const void *from, size_t size, enum default_stream default_stream) {
  return run((struct copy){to, (uintptr_t)from, size, DEVICE, HOST}, NULL, true, default_stream);
}

static CUresult cuMemcpyDtoH_v2_on(void *to, CUdeviceptr from, size_t size, enum default_stream default_stream) {
  return run((struct copy){(uintptr_t)to, from, size, HOST, DEVICE}, NULL, true, default_stream);
}

/* Between two places on the device nothing waits, as on a card. */
static CUresult cuMemcpyDtoD_v2_on(CUdeviceptr to, CUdeviceptr from, size_t size, enum default_stream default_stream) {
  return run((struct copy){to, from, size, DEVICE, DEVICE}, NULL, false, default_stream);
}

static CUresult cuMemcpy_on(CUdeviceptr to, CUdeviceptr from, size_t size, enum default_stream default_stream) {
  return run((struct copy){to, from, size, ANY, ANY}, NULL, true, default_stream);
}

STREAM_API(cuMemcpyHtoD_v2, cuMemcpyHtoD_v2_ptds, (CUdeviceptr to, const void *from, size_t size), to, from, size)
STREAM_API(cuMemcpyDtoH_v2, cuMemcpyDtoH_v2_ptds, (void *to, CUdeviceptr from, size_t size), to, from, size)
STREAM_API(cuMemcpyDtoD_v2, cuMemcpyDtoD_v2_ptds, (CUdeviceptr to, CUdeviceptr from, size_t size), to, from, size)
STREAM_API(cuMemcpy, cuMemcpy_ptds, (CUdeviceptr to, CUdeviceptr from, size_t size), to, from, size)

static CUresult cuMemcpyHtoDAsync_v2_on(CUdeviceptr to, const void *from, size_t size, CUstream stream,
                                        enum default_stream default_stream) {
  return run((struct copy){to, (uintptr_t)from, size, DEVICE, HOST}, stream, false, default_stream);
}

static CUresult cuMemcpyDtoHAsync_v2_on(void *to, CUdeviceptr from, size_t size, CUstream stream,
                                        enum default_stream default_stream) {
  return run((struct copy){(uintptr_t)to, from, size, HOST, DEVICE}, stream, false, default_stream);
}

static CUresult cuMemcpyDtoDAsync_v2_on(CUdeviceptr to, CUdeviceptr from, size_t size, CUstream stream,
                                        enum default_stream default_stream) {
  return run((struct copy){to, from, size, DEVICE, DEVICE}, stream, false, default_stream);
}

static CUresult cuMemcpyAsync_on(CUdeviceptr to, CUdeviceptr from, size_t size, CUstream stream,
                                 enum default_stream default_stream) {
  return run((struct copy){to, from, size, ANY, ANY}, stream, false, default_stream);
}

STREAM_API(cuMemcpyHtoDAsync_v2, cuMemcpyHtoDAsync_v2_ptsz,
           (CUdeviceptr to, const void *from, size_t size, CUstream stream), to, from, size, stream)
STREAM_API(cuMemcpyDtoHAsync_v2, cuMemcpyDtoHAsync_v2_ptsz, (void *to, CUdeviceptr from, size_t size, CUstream stream),
           to, from, size, stream)
STREAM_API(cuMemcpyDtoDAsync_v2, cuMemcpyDtoDAsync_v2_ptsz,
           (CUdeviceptr to, CUdeviceptr from, size_t size, CUstream stream), to, from, size, stream)
STREAM_API(cuMemcpyAsync, cuMemcpyAsync_ptsz, (CUdeviceptr to, CUdeviceptr from, size_t size, CUstream stream), to,
           from, size, stream)
