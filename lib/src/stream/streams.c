#include "stream/streams.h"
#include "device/process.h"

#include "base/log.h"
#include "compute/gate.h"
#include "device/devices.h"
#include "memory/table.h"
#include "stream/meters.h"

#include <stdlib.h>

static struct table streams = TABLE_INITIALIZER; /* key -> meter_stream */
HOT_DATA uint32_t streams_generation = 1;
__thread struct streams_last streams_last;

uint64_t streams_key(CUstream stream, CUcontext context) {
  if (!streams_is_default(stream))
    return (uint64_t)(uintptr_t)stream;
  uint64_t thread = stream == CU_STREAM_PER_THREAD ? (uintptr_t)&streams_last : 0;
  uint64_t mixed = ((uint64_t)(uintptr_t)context * 0x9e3779b97f4a7c15ULL) ^ (thread * 0xff51afd7ed558ccdULL);
  return mixed | 1; /* odd: never a handle, which is an aligned address */
}

/* A graph may be launched on the stream of a context that is not the current one. */
static struct meter *meter_of(CUcontext context, CUcontext current) {
  CUcontext popped;
  if (context == current)
    return meters_current();
  if (real.cuCtxPushCurrent_v2(context) != CUDA_SUCCESS)
    return NULL;
  struct meter *meter = meters_current();
  real.cuCtxPopCurrent_v2(&popped);
  return meter;
}

static COLD struct meter_stream *add(CUstream stream, CUcontext current, uint64_t key) {
  CUcontext context = NULL;
  if (streams_is_default(stream) || real.cuStreamGetCtx(stream, &context) != CUDA_SUCCESS || context == NULL)
    context = current;
  struct meter *meter = meter_of(context, current);
  if (meter == NULL)
    return NULL;
  struct meter_stream *added = meter_add_stream(meter, context, stream);
  if (added == NULL || !table_put(&streams, (struct table_entry){.key = key, .owner = added})) {
    static int said;
    log_once(&said, LOG_WARNING, "no memory for a further stream; the compute limit is not enforced on it");
    device_not_enforced(meter->owner, VGPU_NOT_ENFORCED_SM);
  }
  return added;
}

/* The entries of a destroyed context stay in the table, but the meter has given their streams up. */
static bool still_means(const struct meter_stream *found, CUstream stream, CUcontext context) {
  return atomic_load_explicit(&found->handle, memory_order_relaxed) == stream &&
         (!streams_is_default(stream) || atomic_load_explicit(&found->context, memory_order_relaxed) == context);
}

HOT struct meter_stream *streams_look_up(CUstream stream, enum streams_unknown unknown) {
  CUcontext context = NULL;
  bool is_default = streams_is_default(stream);
  if (is_default && real.cuCtxGetCurrent(&context) != CUDA_SUCCESS)
    return NULL;
  uint32_t now = __atomic_load_n(&streams_generation, __ATOMIC_ACQUIRE);
  if (streams_last.found != NULL && streams_last.stream == stream && streams_last.generation == now &&
      streams_last.context == context)
    return streams_last.found;

  uint64_t key = streams_key(stream, context);
  struct table_entry entry = {0};
  struct meter_stream *found = table_get(&streams, key, &entry) ? entry.owner : NULL;
  if (found != NULL && !still_means(found, stream, context))
    found = NULL;
  if (found == NULL && unknown == STREAMS_ADD) {
    CUcontext current = NULL;
    if (real.cuCtxGetCurrent(&current) == CUDA_SUCCESS && current != NULL)
      found = add(stream, current, key);
  }
  streams_last.stream = stream;
  streams_last.context = context;
  streams_last.generation = now;
  streams_last.found = found;
  return found;
}

void streams_forget_stream(CUstream stream) {
  struct table_entry entry;
  if (!meters_exist() || streams_is_default(stream) || !table_take(&streams, streams_key(stream, NULL), &entry))
    return;
  __atomic_add_fetch(&streams_generation, 1, __ATOMIC_RELEASE);
  struct meter_stream *found = entry.owner;
  if (!still_means(found, stream, NULL))
    return;
  if (atomic_load_explicit(&found->meter->holds_launches, memory_order_relaxed))
    gate_finish(found);
  meter_remove_stream(found);
}

void streams_forget_context(const struct device *device, CUcontext context) {
  struct meter *meter = device != NULL ? __atomic_load_n(&device->meter, __ATOMIC_ACQUIRE) : NULL;
  if (meter == NULL)
    return;
  __atomic_add_fetch(&streams_generation, 1, __ATOMIC_RELEASE);
  meter_remove_context(meter, context);
}

static void streams_forget(void) {
  table_abandon(&streams);
  streams_generation++;
}
PROCESS_IN_CHILD(streams_forget);
