/*
 * Memory of graphs. A node that allocates takes nothing: the driver takes memory when the graph is uploaded or
 * launched, as much as the graph needs at its peak, and keeps it for the next launch. So what the driver keeps for the
 * graphs of a device is what is counted, and a launch is what is refused.
 *
 * How much a graph needs only the driver knows. If all of its allocations fit, it may go on. Near the limit the graph
 * is uploaded first, which takes the memory and runs nothing, and what passes the limit is given back and refused.
 */
#include "cuda/graph_memory.h"

#include "base/compiler.h"
#include "device/devices.h"
#include "device/process.h"
#include "memory/table.h"
#include "stream/streams.h"

static struct table executables = TABLE_INITIALIZER; /* graphs that need memory -> their needs */
static bool any;                                     /* has there been one? */

/* The memory that the driver keeps for graphs on a device. */
struct kept {
  struct device *device;
  CUdevice ordinal;
  uint64_t counted_bytes;
};
static struct kept kept_on[VGPU_MAX_DEVICES];
static int kept_count;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER; /* guards adding to kept_on; not held across a driver call */

static struct kept *find_kept(const struct device *device) {
  int count = __atomic_load_n(&kept_count, __ATOMIC_ACQUIRE);
  for (int i = 0; i < count; i++)
    if (kept_on[i].device == device)
      return &kept_on[i];
  return NULL;
}

static void keep_account(struct device *device, CUdevice ordinal) {
  if (device == NULL)
    return;
  pthread_mutex_lock(&lock);
  if (find_kept(device) == NULL && kept_count < VGPU_MAX_DEVICES) {
    kept_on[kept_count] = (struct kept){.device = device, .ordinal = ordinal};
    __atomic_store_n(&kept_count, kept_count + 1, __ATOMIC_RELEASE);
  }
  pthread_mutex_unlock(&lock);
}

static uint64_t ask(const struct kept *kept, CUgraphMem_attribute attribute) {
  cuuint64_t bytes = 0;
  bool known = real.cuDeviceGetGraphMemAttribute(kept->ordinal, attribute, &bytes) == CUDA_SUCCESS;
  return known ? bytes : 0;
}

/* Threads may do this at the same time: each adds or takes the step from the figure before its own. */
static void reread(struct kept *kept) {
  if (kept == NULL)
    return;
  uint64_t now = ask(kept, CU_GRAPH_MEM_ATTR_RESERVED_MEM_CURRENT);
  uint64_t before = __atomic_exchange_n(&kept->counted_bytes, now, __ATOMIC_SEQ_CST);
  if (now > before)
    memory_add(kept->device, now - before);
  else
    memory_release(kept->device, before - now);
}

void graph_memory_settle(struct device *device, enum pools what) {
  struct kept *kept = find_kept(device);
  if (kept == NULL)
    return;
  if (what == POOLS_TRIM)
    real.cuDeviceGraphMemTrim(kept->ordinal);
  reread(kept);
}

/* ---- launches ---------------------------------------------------------------------------------------------------- */

static void cancel_until(const struct graph_needs *first, const struct graph_needs *end) {
  for (const struct graph_needs *needs = first; needs != end; needs = needs->next)
    memory_cancel(needs->device, needs->most_bytes);
}

static bool reserve_most(const struct graph_needs *first) {
  for (const struct graph_needs *needs = first; needs != NULL; needs = needs->next)
    if (needs->device != NULL && !memory_try_reserve(needs->device, needs->most_bytes)) {
      cancel_until(first, needs);
      return false;
    }
  return true;
}

/* Memory that the driver keeps and no graph uses can serve this one. */
static uint64_t surely_missing(const struct graph_needs *needs) {
  const struct kept *kept = find_kept(needs->device);
  if (kept == NULL)
    return needs->least_bytes;
  uint64_t kept_bytes = ask(kept, CU_GRAPH_MEM_ATTR_RESERVED_MEM_CURRENT);
  return subtract_saturating(needs->least_bytes, kept_bytes);
}

static CUresult upload_and_look(const struct graph_needs *first, CUgraphExec executable, CUstream stream) {
  for (const struct graph_needs *needs = first; needs != NULL; needs = needs->next) {
    uint64_t missing = surely_missing(needs);
    CUresult fits = memory_reserve(needs->device, missing);
    if (fits != CUDA_SUCCESS)
      return fits;
    memory_cancel(needs->device, missing);
  }
  CUresult result = real.cuGraphUpload(executable, stream);
  bool over = false;
  const struct graph_needs *where = first;
  for (const struct graph_needs *needs = first; needs != NULL && !over; needs = needs->next) {
    where = needs;
    reread(find_kept(needs->device));
    over = needs->device != NULL && memory_is_over(needs->device);
  }
  if (!over)
    return result;
  for (const struct graph_needs *needs = first; needs != NULL; needs = needs->next)
    graph_memory_settle(needs->device, POOLS_TRIM);
  return memory_refuse(where->device, where->most_bytes);
}

CUresult graph_memory_begin(struct graph_run *run, CUgraphExec executable, CUstream stream) {
  struct table_entry entry;
  *run = (struct graph_run){0};
  if (!__atomic_load_n(&any, __ATOMIC_ACQUIRE) || executable == NULL ||
      !table_get(&executables, (uint64_t)(uintptr_t)executable, &entry) || capture_is_active(stream))
    return CUDA_SUCCESS;
  run->needs = entry.owner;
  CUstreamCaptureMode mode = capture_relax();
  run->reserved = reserve_most(run->needs);
  CUresult result = run->reserved ? CUDA_SUCCESS : upload_and_look(run->needs, executable, stream);
  capture_restore(mode);
  return result;
}

CUresult graph_memory_end(const struct graph_run *run, CUresult result) {
  if (run->needs == NULL)
    return result;
  CUstreamCaptureMode mode = capture_relax();
  for (const struct graph_needs *needs = run->needs; needs != NULL; needs = needs->next)
    reread(find_kept(needs->device));
  if (run->reserved)
    cancel_until(run->needs, NULL);
  capture_restore(mode);
  return result;
}

#define UPLOAD(name, stream_of)                                                                                        \
  HOOK CUresult name(CUgraphExec executable, CUstream stream) {                                                        \
    if (!process_is_limited())                                                                                         \
      return real.name(executable, stream);                                                                            \
    struct graph_run run;                                                                                              \
    CUresult result = graph_memory_begin(&run, executable, stream_of(stream));                                         \
    return result != CUDA_SUCCESS ? result : graph_memory_end(&run, real.name(executable, stream));                    \
  }

UPLOAD(cuGraphUpload, legacy)
UPLOAD(cuGraphUpload_ptsz, per_thread)

HOOK CUresult cuDeviceGraphMemTrim(CUdevice ordinal) {
  bool limited = process_is_limited();
  CUresult result = real.cuDeviceGraphMemTrim(ordinal);
  struct device *device = limited && result == CUDA_SUCCESS ? device_of_ordinal(ordinal) : NULL;
  if (device != NULL)
    graph_memory_settle(device, POOLS_REREAD);
  return result;
}

/* ---- instantiation ----------------------------------------------------------------------------------------------- */

/* False without host memory to remember it by. */
static bool remember(CUgraphExec executable, CUgraph graph) {
  struct graph_needs *needs;
  if (!graph_nodes_read(graph, &needs))
    return false;
  if (needs == NULL)
    return true;
  for (const struct graph_needs *each = needs; each != NULL; each = each->next)
    keep_account(each->device, each->ordinal);
  __atomic_store_n(&any, true, __ATOMIC_RELEASE);
  if (table_put(&executables, (struct table_entry){.key = (uint64_t)(uintptr_t)executable, .owner = needs}))
    return true;
  graph_needs_free(needs);
  return false;
}

static CUresult instantiated(CUresult result, CUgraphExec *executable, CUgraph graph) {
  if (result != CUDA_SUCCESS || remember(*executable, graph))
    return result;
  real.cuGraphExecDestroy(*executable);
  return CUDA_ERROR_OUT_OF_MEMORY;
}

#define INSTANTIATE(name, parameters, executable, graph, ...)                                                          \
  HOOK CUresult name parameters {                                                                                      \
    bool limited = process_is_limited();                                                                               \
    CUresult result = real.name(executable, graph, __VA_ARGS__);                                                       \
    return limited ? instantiated(result, executable, graph) : result;                                                 \
  }

INSTANTIATE(cuGraphInstantiate,
            (CUgraphExec * executable, CUgraph graph, CUgraphNode *error_node, char *text, size_t text_size),
            executable, graph, error_node, text, text_size)
INSTANTIATE(cuGraphInstantiate_v2,
            (CUgraphExec * executable, CUgraph graph, CUgraphNode *error_node, char *text, size_t text_size),
            executable, graph, error_node, text, text_size)
INSTANTIATE(cuGraphInstantiateWithFlags, (CUgraphExec * executable, CUgraph graph, unsigned long long flags),
            executable, graph, flags)

/* Instantiates without the upload that the parameters may ask for, and uploads by our own call. */
static CUresult with_params(CUgraphExec *executable, CUgraph graph, CUDA_GRAPH_INSTANTIATE_PARAMS *parameters,
                            CUresult (*instantiate)(CUgraphExec *, CUgraph, CUDA_GRAPH_INSTANTIATE_PARAMS *),
                            CUresult (*upload)(CUgraphExec, CUstream)) {
  if (!process_is_limited() || parameters == NULL)
    return instantiate(executable, graph, parameters);
  cuuint64_t flags = parameters->flags;
  parameters->flags &= ~(cuuint64_t)CUDA_GRAPH_INSTANTIATE_FLAG_UPLOAD;
  CUresult result = instantiated(instantiate(executable, graph, parameters), executable, graph);
  parameters->flags = flags;
  if (result != CUDA_SUCCESS || !(flags & CUDA_GRAPH_INSTANTIATE_FLAG_UPLOAD))
    return result;
  result = upload(*executable, parameters->hUploadStream);
  if (result != CUDA_SUCCESS) {
    cuGraphExecDestroy(*executable);
    parameters->result_out = CUDA_GRAPH_INSTANTIATE_ERROR;
  }
  return result;
}

HOOK CUresult cuGraphInstantiateWithParams(CUgraphExec *executable, CUgraph graph,
                                           CUDA_GRAPH_INSTANTIATE_PARAMS *parameters) {
  hooks_load_cuda();
  return with_params(executable, graph, parameters, real.cuGraphInstantiateWithParams, cuGraphUpload);
}

HOOK CUresult cuGraphInstantiateWithParams_ptsz(CUgraphExec *executable, CUgraph graph,
                                                CUDA_GRAPH_INSTANTIATE_PARAMS *parameters) {
  hooks_load_cuda();
  return with_params(executable, graph, parameters, real.cuGraphInstantiateWithParams_ptsz, cuGraphUpload_ptsz);
}

/* An updated graph needs what the graph needs that it was updated from. */
static void updated(CUgraphExec executable, CUgraph graph) {
  struct table_entry entry;
  uint64_t key = (uint64_t)(uintptr_t)executable;
  if (!__atomic_load_n(&any, __ATOMIC_ACQUIRE) || executable == NULL || !table_get(&executables, key, &entry))
    return;
  struct graph_needs *needs;
  if (!graph_nodes_read(graph, &needs)) /* no host memory: what it needs is seen once the driver has taken it */
    return;
  struct graph_needs *before = entry.owner;
  entry.owner = needs;
  table_put(&executables, entry);
  graph_needs_free(before);
}

HOOK CUresult cuGraphExecUpdate(CUgraphExec executable, CUgraph graph, CUgraphNode *error_node,
                                CUgraphExecUpdateResult *outcome) {
  bool limited = process_is_limited();
  CUresult result = real.cuGraphExecUpdate(executable, graph, error_node, outcome);
  if (limited && result == CUDA_SUCCESS)
    updated(executable, graph);
  return result;
}

HOOK CUresult cuGraphExecUpdate_v2(CUgraphExec executable, CUgraph graph, CUgraphExecUpdateResultInfo *outcome) {
  bool limited = process_is_limited();
  CUresult result = real.cuGraphExecUpdate_v2(executable, graph, outcome);
  if (limited && result == CUDA_SUCCESS)
    updated(executable, graph);
  return result;
}

/* The entry goes first: once the driver has the handle back, it may give it out again. */
HOOK CUresult cuGraphExecDestroy(CUgraphExec executable) {
  struct table_entry entry;
  bool known = process_is_limited() && __atomic_load_n(&any, __ATOMIC_ACQUIRE) && executable != NULL &&
               table_take(&executables, (uint64_t)(uintptr_t)executable, &entry);
  CUresult result = real.cuGraphExecDestroy(executable);
  if (known && result == CUDA_SUCCESS)
    graph_needs_free(entry.owner);
  else if (known)
    table_put(&executables, entry);
  return result;
}

static void graph_memory_forget(void) {
  pthread_mutex_init(&lock, NULL);
  table_abandon(&executables);
  any = false;
  kept_count = 0;
}
PROCESS_IN_CHILD(graph_memory_forget);
