/*
 * Where the program waits for the GPU, batches end: else the idle time behind them would be measured as work. After the
 * wait, what has completed is charged at once. And what is measured ends with its stream.
 */
#include "cuda_launch.h"
#include "process.h"
#include "streams.h"

void launch_begin_wait(CUstream stream) {
  if (!process_limits_compute())
    return;
  struct meter_stream *metered = streams_find_known(stream);
  if (metered != NULL)
    meter_close(metered);
}

void launch_begin_wait_all(void) {
  struct meter *meter = process_limits_compute() ? streams_current_meter() : NULL;
  if (meter != NULL)
    meter_close_all(meter);
}

void launch_end_wait(void) {
  struct meter *meter = process_limits_compute() ? streams_current_meter() : NULL;
  if (meter != NULL)
    meter_harvest(meter);
}

static CUresult end_wait(CUresult result) {
  launch_end_wait();
  return result;
}

HOOK CUresult cuStreamSynchronize(CUstream stream) {
  launch_begin_wait(legacy(stream));
  return end_wait(real.cuStreamSynchronize(stream));
}

HOOK CUresult cuStreamSynchronize_ptsz(CUstream stream) {
  launch_begin_wait(per_thread(stream));
  return end_wait(real.cuStreamSynchronize_ptsz(stream));
}

HOOK CUresult cuCtxSynchronize(void) {
  launch_begin_wait_all();
  return end_wait(real.cuCtxSynchronize());
}

HOOK CUresult cuEventSynchronize(CUevent event) {
  launch_begin_wait_all();
  return end_wait(real.cuEventSynchronize(event));
}

HOOK CUresult cuMemcpyDtoH_v2(void *host, CUdeviceptr device, size_t size) {
  launch_begin_wait_all();
  return end_wait(real.cuMemcpyDtoH_v2(host, device, size));
}

HOOK CUresult cuMemcpyDtoH_v2_ptds(void *host, CUdeviceptr device, size_t size) {
  launch_begin_wait_all();
  return end_wait(real.cuMemcpyDtoH_v2_ptds(host, device, size));
}

HOOK CUresult cuStreamDestroy_v2(CUstream stream) {
  launch_forget_stream(legacy(stream));
  return real.cuStreamDestroy_v2(stream);
}

HOOK CUresult cuStreamDestroy(CUstream stream) {
  launch_forget_stream(legacy(stream));
  return real.cuStreamDestroy(stream);
}
