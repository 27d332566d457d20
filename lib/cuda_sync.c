/*
 * Where the program waits for the GPU: what is then known of its streams is used, and what has completed is charged at
 * once. And what is measured ends with its stream.
 */
#include "clock.h"
#include "cuda_launch.h"
#include "cuda_memory.h"
#include "launch_rows.h"
#include "meters.h"
#include "process.h"
#include "streams.h"

static void begin_wait(CUstream stream) {
  launch_row_end();
  struct meter_stream *metered = meters_measure() ? streams_find_known(stream) : NULL;
  if (metered != NULL)
    meter_before_wait(metered);
}

static CUresult end_wait(CUstream stream, CUresult result) {
  int64_t returned_ns = meters_measure() ? clock_now_ns() : 0;
  struct meter_stream *metered = returned_ns != 0 ? streams_find_known(stream) : NULL;
  if (metered != NULL)
    meter_after_wait(metered, result == CUDA_SUCCESS ? METER_STREAM_IS_IDLE : METER_STREAM_MAY_BE_BUSY, returned_ns);
  return result;
}

/* When it began, or 0. */
static int64_t begin_wait_all(void) {
  launch_row_end();
  struct meter *meter = meters_measure() ? meters_current() : NULL;
  if (meter == NULL)
    return 0;
  meter_before_wait_all(meter);
  return clock_now_ns();
}

static CUresult end_wait_all(enum meter_scope scope, int64_t began_ns, CUresult result) {
  int64_t returned_ns = began_ns != 0 ? clock_now_ns() : 0;
  struct meter *meter = returned_ns != 0 ? meters_current() : NULL;
  if (meter != NULL)
    meter_after_wait_all(meter, scope, began_ns, returned_ns);
  if (process_is_limited())
    pools_after_wait();
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
  int64_t began_ns = begin_wait_all();
  return end_wait_all(METER_FOR_ALL, began_ns, real.cuCtxSynchronize());
}

/* Of another context than the thread's nothing can be asked or marked here. */
static bool is_current(CUcontext context) {
  CUcontext current = NULL;
  return context == NULL || (real.cuCtxGetCurrent(&current) == CUDA_SUCCESS && current == context);
}

/* cudaDeviceSynchronize, from CUDA 13 on. */
HOOK CUresult cuCtxSynchronize_v2(CUcontext context) {
  if (!is_current(context))
    return real.cuCtxSynchronize_v2(context);
  int64_t began_ns = begin_wait_all();
  return end_wait_all(METER_FOR_ALL, began_ns, real.cuCtxSynchronize_v2(context));
}

HOOK CUresult cuEventSynchronize(CUevent event) {
  int64_t began_ns = begin_wait_all();
  return end_wait_all(METER_FOR_SOME, began_ns, real.cuEventSynchronize(event));
}

HOOK CUresult cuMemcpyDtoH_v2(void *host, CUdeviceptr device, size_t size) {
  int64_t began_ns = begin_wait_all();
  return end_wait_all(METER_FOR_SOME, began_ns, real.cuMemcpyDtoH_v2(host, device, size));
}

HOOK CUresult cuMemcpyDtoH_v2_ptds(void *host, CUdeviceptr device, size_t size) {
  int64_t began_ns = begin_wait_all();
  return end_wait_all(METER_FOR_SOME, began_ns, real.cuMemcpyDtoH_v2_ptds(host, device, size));
}

HOOK CUresult cuStreamDestroy_v2(CUstream stream) {
  launch_forget_stream(legacy(stream));
  return real.cuStreamDestroy_v2(stream);
}

HOOK CUresult cuStreamDestroy(CUstream stream) {
  launch_forget_stream(legacy(stream));
  return real.cuStreamDestroy(stream);
}
