/* The calls that wait for the GPU: each notes which streams have nothing outstanding afterwards. */
#include "base/clock.h"
#include "compute/gate.h"
#include "compute/outstanding.h"
#include "cuda/memory.h"
#include "cuda/memory_pools.h"
#include "device/process.h"
#include "stream/meters.h"
#include "stream/streams.h"

/* Charges the GPU time used also after waits where launches are held, rather than at the next launch. */
static void settle(struct meter *meter) {
  if (atomic_load_explicit(&meter->holds_launches, memory_order_relaxed))
    gate_settle_now_and_then(meter, quick_clock_ns());
}

/* Returns when the wait began. */
static int64_t begin_wait(CUstream stream) {
  return meters_measure() && streams_find_known(stream) != NULL ? quick_clock_ns() : 0;
}

/* The legacy stream waits for others, too. */
static CUresult end_wait(CUstream stream, int64_t began_ns, CUresult result) {
  struct meter_stream *metered = meters_measure() && result == CUDA_SUCCESS ? streams_find_known(stream) : NULL;
  if (metered == NULL)
    return result;
  outstanding_done(metered, began_ns);
  if (stream == CU_STREAM_LEGACY)
    outstanding_ask(metered->meter, began_ns);
  settle(metered->meter);
  return result;
}

/* The meter of what is waited for, or asked for, or NULL; and when that began. */
struct wait_all {
  struct meter *meter;
  int64_t began_ns;
};

static struct wait_all begin_wait_all(void) {
  struct meter *meter = meters_measure() ? meters_current() : NULL;
  if (meter == NULL)
    return (struct wait_all){0};
  return (struct wait_all){meter, quick_clock_ns()};
}

static CUresult end_wait_all(struct wait_all wait, CUresult result) {
  if (wait.meter != NULL) {
    outstanding_ask(wait.meter, wait.began_ns);
    settle(wait.meter);
  }
  if (process_is_limited())
    pools_after_wait();
  return result;
}

/* After one for the whole of the current context. */
static CUresult end_wait_context(struct wait_all wait, CUresult result) {
  CUcontext context = NULL;
  if (wait.meter != NULL && result == CUDA_SUCCESS && real.cuCtxGetCurrent(&context) == CUDA_SUCCESS && context != NULL)
    outstanding_all_done(wait.meter, context, wait.began_ns);
  return end_wait_all(wait, result);
}

static CUresult end_poll(struct wait_all wait, CUresult result) {
  if (wait.meter != NULL && result == CUDA_SUCCESS) {
    outstanding_ask(wait.meter, wait.began_ns);
    settle(wait.meter);
  }
  return result;
}

HOOK CUresult cuStreamSynchronize(CUstream stream) {
  int64_t began_ns = begin_wait(legacy(stream));
  return end_wait(legacy(stream), began_ns, real.cuStreamSynchronize(stream));
}

HOOK CUresult cuStreamSynchronize_ptsz(CUstream stream) {
  int64_t began_ns = begin_wait(per_thread(stream));
  return end_wait(per_thread(stream), began_ns, real.cuStreamSynchronize_ptsz(stream));
}

HOOK CUresult cuCtxSynchronize(void) {
  struct wait_all wait = begin_wait_all();
  return end_wait_context(wait, real.cuCtxSynchronize());
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
  struct wait_all wait = begin_wait_all();
  return end_wait_context(wait, real.cuCtxSynchronize_v2(context));
}

HOOK CUresult cuEventSynchronize(CUevent event) {
  struct wait_all wait = begin_wait_all();
  return end_wait_all(wait, real.cuEventSynchronize(event));
}

HOOK CUresult cuStreamQuery(CUstream stream) {
  struct wait_all wait = begin_wait_all();
  return end_poll(wait, real.cuStreamQuery(stream));
}

HOOK CUresult cuStreamQuery_ptsz(CUstream stream) {
  struct wait_all wait = begin_wait_all();
  return end_poll(wait, real.cuStreamQuery_ptsz(stream));
}

HOOK CUresult cuEventQuery(CUevent event) {
  struct wait_all wait = begin_wait_all();
  return end_poll(wait, real.cuEventQuery(event));
}

HOOK CUresult cuMemcpyDtoH_v2(void *host, CUdeviceptr device, size_t size) {
  struct wait_all wait = begin_wait_all();
  return end_wait_all(wait, real.cuMemcpyDtoH_v2(host, device, size));
}

HOOK CUresult cuMemcpyDtoH_v2_ptds(void *host, CUdeviceptr device, size_t size) {
  struct wait_all wait = begin_wait_all();
  return end_wait_all(wait, real.cuMemcpyDtoH_v2_ptds(host, device, size));
}

HOOK CUresult cuStreamDestroy_v2(CUstream stream) {
  streams_forget_stream(legacy(stream));
  return real.cuStreamDestroy_v2(stream);
}

HOOK CUresult cuStreamDestroy(CUstream stream) {
  streams_forget_stream(legacy(stream));
  return real.cuStreamDestroy(stream);
}
