#include "context_lives.h"

#include <string.h>

#include "arrays.h"
#include "capture.h"
#include "context_limits.h"
#include "control.h"
#include "device_memory.h"
#include "events.h"
#include "graph_memory.h"
#include "modules.h"
#include "pool_memory.h"
#include "pools.h"
#include "spins.h"
#include "state.h"
#include "streams.h"

CUresult context_activate(struct context *context) {
  uint64_t overhead_bytes = sim_config.devices[context->device].context_overhead_bytes;
  context->legacy = stream_new(context, CU_STREAM_DEFAULT, 0);
  if (!context->legacy || !pools_take_memory(context->device, overhead_bytes)) {
    if (context->legacy)
      stream_delete(context->legacy);
    context->legacy = NULL;
    return CUDA_ERROR_OUT_OF_MEMORY;
  }
  if (!control_make_channels(context->device, &context->group)) {
    state_release(context->device, overhead_bytes);
    stream_delete(context->legacy);
    context->legacy = NULL;
    return CUDA_ERROR_OUT_OF_MEMORY;
  }
  context->legacy->legacy = true;
  context->active = true;
  memcpy(context->limits, (const uint64_t[]){DEFAULT_STACK_BYTES, MIB, 8 * MIB}, sizeof context->limits);
  return CUDA_SUCCESS;
}

struct siblings {
  unsigned device;
  bool any;
};

static void look_for_active(void *object, void *argument) {
  const struct context *context = object;
  struct siblings *siblings = argument;
  if (context->active && context->device == siblings->device)
    siblings->any = true;
}

void context_deactivate(struct context *context) {
  captures_abandon_of(context);
  streams_delete_of(context);
  events_delete_of(context);
  modules_delete_of(context);
  arrays_delete_of(context);
  memory_delete_of(context);
  state_release(context->device,
                sim_config.devices[context->device].context_overhead_bytes + context_stack_bytes(context));
  spins_end_of(context->group);
  control_free_channels(context->group);
  context->legacy = NULL;
  context->blocking_tail_ns = context->legacy_tail_ns = context->gone_tail_ns = 0;
  context->active = false;
  struct siblings siblings = {.device = context->device};
  handle_visit(HANDLE_CONTEXT, look_for_active, &siblings);
  if (siblings.any)
    return;
  pools_empty_device(context->device);
  graph_memory_empty_device(context->device);
}
