/*
 * Where the program waits for the GPU: what is then known of its streams is used, and what has completed is charged at
 * once. And what is measured ends with its stream.
 */
#include "base/clock.h"
#include "cuda/memory.h"
#include "cuda/memory_pools.h"
#include "device/process.h"
#include "stream/meters.h"
#include "stream/streams.h"

static void begin_wait(CUstream stream) {
  struct meter_stream *metered = meters_measure() ? streams_find_known(stream) : NULL;
  if (metered != NULL)
    meter_before_wait(metered);
}

static CUresult end_wait(CUstream stream, CUresult result) {
  int64_t returned_ns = meters_measure() ? quick_clock_ns() : 0;
  struct meter_stream *metered = returned_ns != 0 ? streams_find_known(stream) : NULL;
  if (metered != NULL)
    meter_after_wait(metered, result == CUDA_SUCCESS ? METER_STREAM_IS_IDLE : METER_STREAM_MAY_BE_BUSY, returned_ns);
  return result;
}

/* The meter of what is waited for, or asked for, or NULL. */
static struct meter *begin_wait_all(void) {
  struct meter *meter = meters_measure() ? meters_current() : NULL;
  if (meter != NULL)
    meter_before_wait_all(meter);
  return meter;
}

static CUresult end_wait_all(struct meter *meter, CUresult result) {
  if (meter != NULL)
    meter_after_wait_all(meter, quick_clock_ns());
  if (process_is_limited())
    pools_after_wait();
  return result;
}

static CUresult end_poll(struct meter *meter, CUresult result) {
  if (meter != NULL && result == CUDA_SUCCESS)
    meter_after_poll(meter);
  return result;
}

HOOK CUresult cuStreamSynchronize(CUstream stream) {
  begin_wait(legacy(stream));
  return end_wait(legacy(stream), real.cuStreamSynchronize(stream));
}

HOOK CUresult cuStreamSynchronize_ptsz(CUstream stream) {
  begin_wait(per_thread(stream));
  return end_wait(per_thread(stream), real.cuStreamSynchronize_ptsz(stream));
}

HOOK CUresult cuCtxSynchronize(void) {
  struct meter *meter = begin_wait_all();
  return end_wait_all(meter, real.cuCtxSynchronize());
}

/* Only the thread's own context can be asked or marked here. */
static bool is_current(CUcontext context) {
  CUcontext current = NULL;
  return context == NULL || (real.cuCtxGetCurrent(&current) == CUDA_SUCCESS && current == context);
}

/* cudaDeviceSynchronize, from CUDA 13 on. */
HOOK CUresult cuCtxSynchronize_v2(CUcontext context) {
  if (!is_current(context))
    return real.cuCtxSynchronize_v2(context);
  struct meter *meter = begin_wait_all();
  return end_wait_all(meter, real.cuCtxSynchronize_v2(context));
}

HOOK CUresult cuEventSynchronize(CUevent event) {
  struct meter *meter = begin_wait_all();
  return end_wait_all(meter, real.cuEventSynchronize(event));
}

HOOK CUresult cuStreamQuery(CUstream stream) {
  struct meter *meter = begin_wait_all();
  return end_poll(meter, real.cuStreamQuery(stream));
}

HOOK CUresult cuStreamQuery_ptsz(CUstream stream) {
  struct meter *meter = begin_wait_all();
  return end_poll(meter, real.cuStreamQuery_ptsz(stream));
}

HOOK CUresult cuEventQuery(CUevent event) {
  struct meter *meter = begin_wait_all();
  return end_poll(meter, real.cuEventQuery(event));
}

HOOK CUresult cuMemcpyDtoH_v2(void *host, CUdeviceptr device, size_t size) {
  struct meter *meter = begin_wait_all();
  return end_wait_all(meter, real.cuMemcpyDtoH_v2(host, device, size));
}

HOOK CUresult cuMemcpyDtoH_v2_ptds(void *host, CUdeviceptr device, size_t size) {
  struct meter *meter = begin_wait_all();
  return end_wait_all(meter, real.cuMemcpyDtoH_v2_ptds(host, device, size));
}

HOOK CUresult cuStreamDestroy_v2(CUstream stream) {
  streams_forget_stream(legacy(stream));
  return real.cuStreamDestroy_v2(stream);
}

HOOK CUresult cuStreamDestroy(CUstream stream) {
  streams_forget_stream(legacy(stream));
  return real.cuStreamDestroy(stream);
}
