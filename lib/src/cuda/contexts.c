/* Contexts: made, looked at, and undone when they pass the limit; and their end. */
#include "base/log.h"
#include "cuda/memory.h"
#include "cuda/overhead.h"
#include "cuda/reserve.h"
#include "device/suspension.h"
#include "memory/table.h"
#include "stream/meters.h"
#include "stream/profile.h"
#include "stream/streams.h"

#include <stdlib.h>

#define MPS_ENABLED ((CUdevice_attribute)133) /* CU_DEVICE_ATTRIBUTE_MPS_ENABLED, which older headers do not name */

/* Fails without an MPS server, without which CUDA silently uses the GPU directly. */
static CUresult check_is_together(void) {
  int is_client = 0;
  if (!process_is_together() || (real.cuDeviceGetAttribute(&is_client, MPS_ENABLED, 0) == CUDA_SUCCESS && is_client))
    return CUDA_SUCCESS;
  const char *pipes = getenv("CUDA_MPS_PIPE_DIRECTORY");
  log_line(LOG_ERROR,
           "this program is to share the GPU in space and found no MPS server (%s): it gets no GPU; start it again by "
           "vgpurun",
           pipes != NULL ? pipes : "CUDA_MPS_PIPE_DIRECTORY is not set");
  return CUDA_ERROR_MPS_CONNECTION_FAILED;
}

HOOK CUresult cuInit(unsigned flags) {
  hooks_load_cuda();
  if (!process_shows_limits())
    return real.cuInit(flags);
  suspension_enter_start();
  visible_set();
  while (process_is_suspended()) { /* by now: it may have seen the GPUs that the share goes to */
    suspension_leave_start();
    suspension_enter_start();
    visible_set();
  }
  CUresult result = real.cuInit(flags);
  suspension_leave_start();
  return result == CUDA_SUCCESS ? check_is_together() : result;
}

struct measured_context {
  struct measured_allocation measured;
  uint64_t uncounted_before;
};

static struct measured_context measured_context(CUdevice ordinal) {
  struct device *device = process_is_limited() ? device_of_ordinal(ordinal) : NULL;
  return (struct measured_context){.measured = measured_allocation(device, 0)};
}

static bool begin_context(struct measured_context *context) {
  struct device *device = context->measured.device;
  if (device != NULL && measured_is_to_be_made(&context->measured) && !memory_is_untouched(device)) {
    overhead_correct(device, 0);
    context->uncounted_before = overhead_uncounted(device).most_bytes;
  }
  return measured_begin(&context->measured);
}

static bool context_passes_limit(struct measured_context *made, CUresult result, const CUcontext *context) {
  struct device *device = made->measured.device;
  measured_count(&made->measured, result);
  if (device != NULL && result == CUDA_SUCCESS)
    overhead_context_made(device, *context, made->uncounted_before);
  return measured_is_over(&made->measured);
}

static void end_context(struct measured_context *made, CUresult result, CUcontext *context) {
  if (!context_passes_limit(made, result, context))
    return;
  real.cuCtxDestroy_v2(*context);
  overhead_context_ended(made->measured.device, *context);
  *context = NULL;
}

HOOK CUresult cuCtxCreate(CUcontext *context, unsigned int flags, CUdevice ordinal) {
  struct measured_context measured = measured_context(ordinal);
  while (begin_context(&measured))
    end_context(&measured, real.cuCtxCreate(context, flags, ordinal), context);
  return measured.measured.result;
}

HOOK CUresult cuCtxCreate_v2(CUcontext *context, unsigned int flags, CUdevice ordinal) {
  struct measured_context measured = measured_context(ordinal);
  while (begin_context(&measured))
    end_context(&measured, real.cuCtxCreate_v2(context, flags, ordinal), context);
  return measured.measured.result;
}

HOOK CUresult cuCtxCreate_v3(CUcontext *context, CUexecAffinityParam *parameters, int count, unsigned int flags,
                             CUdevice ordinal) {
  struct measured_context measured = measured_context(ordinal);
  while (begin_context(&measured))
    end_context(&measured, real.cuCtxCreate_v3(context, parameters, count, flags, ordinal), context);
  return measured.measured.result;
}

HOOK CUresult cuCtxCreate_v4(CUcontext *context, CUctxCreateParams *parameters, unsigned int flags, CUdevice ordinal) {
  struct measured_context measured = measured_context(ordinal);
  while (begin_context(&measured))
    end_context(&measured, real.cuCtxCreate_v4(context, parameters, flags, ordinal), context);
  return measured.measured.result;
}

/* The primary context comes into being with the first reference; a further one takes nothing. */
HOOK CUresult cuDevicePrimaryCtxRetain(CUcontext *context, CUdevice ordinal) {
  bool limited = process_is_limited(), exists = limited && device_primary_is_active(ordinal);
  struct measured_context measured = exists ? (struct measured_context){0} : measured_context(ordinal);
  CUcontext made = NULL;
  while (begin_context(&measured))
    if (context_passes_limit(&measured, real.cuDevicePrimaryCtxRetain(context != NULL ? &made : NULL, ordinal),
                             &made)) {
      real.cuDevicePrimaryCtxRelease_v2(ordinal);
      overhead_context_ended(measured.measured.device, made);
    }
  if (measured.measured.result != CUDA_SUCCESS)
    return measured.measured.result;
  struct device *device = limited ? device_of_ordinal(ordinal) : NULL;
  if (device != NULL)
    __atomic_store_n(&device->primary_context, made, __ATOMIC_RELAXED);
  *context = made;
  return CUDA_SUCCESS;
}

/* ---- the end of contexts ---------------------------------------------------------------------------------------- */

static struct device *device_of_context(CUcontext context) {
  CUcontext popped;
  if (real.cuCtxPushCurrent_v2(context) != CUDA_SUCCESS)
    return NULL;
  struct device *device = device_of_current_context();
  real.cuCtxPopCurrent_v2(&popped);
  return device;
}

/* Memory that the driver has freed with a context is counted until the context is forgotten. */
static CUresult forget_context(struct device *device, CUcontext context, bool ended, CUresult result) {
  if (ended)
    memory_forget_context(device, context);
  memory_end_leaving(device, LEDGER_UNKNOWN_BYTES);
  if (ended && device != NULL)
    overhead_correct(device, 0);
  return result;
}

static CUresult destroy_context(CUcontext context, CUresult (*destroy)(CUcontext)) {
  if (!process_is_limited())
    return destroy(context);
  struct device *device = device_of_context(context);
  device_contexts_change();
  memory_begin_leaving(device, LEDGER_UNKNOWN_BYTES);
  bool profile_paused = profile_is_on() && profile_streams_pause();
  CUresult result = destroy(context);
  bool ended = result == CUDA_SUCCESS || device_of_context(context) == NULL; /* the error may be that of its work */
  if (profile_is_on())
    profile_streams_resume(profile_paused, ended ? context : NULL);
  if (ended)
    streams_forget_context(device, context);
  return forget_context(device, context, result == CUDA_SUCCESS, result);
}

HOOK CUresult cuCtxDestroy(CUcontext context) {
  hooks_load_cuda();
  return destroy_context(context, real.cuCtxDestroy);
}

HOOK CUresult cuCtxDestroy_v2(CUcontext context) {
  hooks_load_cuda();
  return destroy_context(context, real.cuCtxDestroy_v2);
}

/* A call that may end a device's primary context. */
struct release {
  CUdevice ordinal;
  struct device *device;
  CUcontext green; /* the green context that goes; NULL: none */
  bool profile_paused;
};

static struct release begin_release(CUdevice ordinal, CUcontext green) {
  struct release release = {.ordinal = ordinal, .device = device_of_ordinal(ordinal), .green = green};
  device_contexts_change();
  memory_begin_leaving(release.device, LEDGER_UNKNOWN_BYTES);
  release.profile_paused = profile_is_on() && profile_streams_pause();
  return release;
}

static CUresult end_release(const struct release *release, CUresult result) {
  struct device *device = release->device;
  bool ended = device != NULL && !device_primary_is_active(release->ordinal);
  CUcontext context = ended ? __atomic_load_n(&device->primary_context, __ATOMIC_RELAXED) : NULL;
  if (profile_is_on())
    profile_streams_resume(release->profile_paused, context);
  if (context != NULL)
    streams_forget_context(device, context);
  if (ended && release->green != NULL) {
    streams_forget_context(device, release->green);
    memory_forget_context(device, release->green);
  }
  return forget_context(device, context, ended && result == CUDA_SUCCESS, result);
}

/* A release ends the primary context with the last reference, a reset at once. */
static CUresult release_primary(CUdevice ordinal, CUresult (*call)(CUdevice)) {
  if (!process_is_limited())
    return call(ordinal);
  struct release release = begin_release(ordinal, NULL);
  return end_release(&release, call(ordinal));
}

#define RELEASE_PRIMARY(name)                                                                                          \
  HOOK CUresult name(CUdevice ordinal) {                                                                               \
    hooks_load_cuda();                                                                                                 \
    return release_primary(ordinal, real.name);                                                                        \
  }

RELEASE_PRIMARY(cuDevicePrimaryCtxRelease)
RELEASE_PRIMARY(cuDevicePrimaryCtxRelease_v2)
RELEASE_PRIMARY(cuDevicePrimaryCtxReset)
RELEASE_PRIMARY(cuDevicePrimaryCtxReset_v2)

/* ---- green contexts ----------------------------------------------------------------------------------------------
 */

static struct table green_contexts = TABLE_INITIALIZER; /* handle -> device, and its ordinal as the kind */

static void green_contexts_forget(void) {
  table_abandon(&green_contexts);
}
PROCESS_IN_CHILD(green_contexts_forget);

HOOK CUresult cuGreenCtxCreate(CUgreenCtx *green, CUdevResourceDesc description, CUdevice ordinal, unsigned flags) {
  struct device *device = process_is_limited() ? device_of_ordinal(ordinal) : NULL;
  if (device == NULL || green == NULL)
    return real.cuGreenCtxCreate(green, description, ordinal, flags);
  struct measured_allocation measured = measured_allocation(device, 0);
  CUgreenCtx made = NULL;
  while (measured_begin(&measured))
    if (measured_passes_limit(&measured, real.cuGreenCtxCreate(&made, description, ordinal, flags)))
      real.cuGreenCtxDestroy(made);
  if (measured.result != CUDA_SUCCESS)
    return measured.result;
  if (!table_put(&green_contexts, (struct table_entry){.key = (uintptr_t)made, .owner = device, .kind = ordinal})) {
    real.cuGreenCtxDestroy(made);
    overhead_correct(device, 0);
    return CUDA_ERROR_OUT_OF_MEMORY;
  }
  *green = made;
  return CUDA_SUCCESS;
}

/* A green context may have the last reference to the primary one, and then memory goes with it. */
HOOK CUresult cuGreenCtxDestroy(CUgreenCtx green) {
  hooks_load_cuda();
  struct table_entry entry;
  if (!process_is_limited() || !table_take(&green_contexts, (uintptr_t)green, &entry))
    return real.cuGreenCtxDestroy(green);
  CUcontext context = NULL;
  real.cuCtxFromGreenCtx(&context, green);
  struct release release = begin_release(entry.kind, context);
  CUresult result = real.cuGreenCtxDestroy(green);
  if (result != CUDA_SUCCESS)
    table_put(&green_contexts, entry);
  return end_release(&release, result);
}

/* The current context may be of another device, or there is none. */
static struct device *device_of_green_context(CUgreenCtx green) {
  struct table_entry entry;
  return process_shows_limits() && table_get(&green_contexts, (uintptr_t)green, &entry) ? entry.owner : NULL;
}

MEASURED_HOOK_ON(device_of_green_context(green), cuGreenCtxStreamCreate, stream, cuStreamDestroy_v2, STREAM_BYTES,
                 (CUstream * stream, CUgreenCtx green, unsigned flags, int priority), green, flags, priority)
