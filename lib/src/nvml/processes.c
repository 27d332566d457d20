/*
 * The lists of running processes: those of the container, by the PIDs that they have themselves, with what the ledger
 * counts for them. So the list agrees with the memory shown as used, and also where the driver's is no help: drivers
 * of before PIDs were translated list processes by PIDs of the host, and a container without a PID namespace of its own
 * sees those of everybody.
 *
 * Only the driver knows which processes draw (graphics) and which compute through MPS: of its lists the container's
 * processes are left.
 */
#include "nvml/view.h"

#include "device/nvml_processes.h"
#include "device/process.h"
#include "memory/ledger_totals.h"

#define NO_MIG_INSTANCE 0xFFFFFFFFu

/* ---- filling the caller's array -------------------------------------------------------------------------------- */

/* The rows of the three versions have the same names, but other layouts. */
enum layout { LAYOUT_V1, LAYOUT_V2, LAYOUT_DETAIL };

struct list {
  enum layout layout;
  void *rows;
  unsigned room;
  unsigned count; /* also of those for which there was no room */
};

static void add(struct list *list, nvmlProcessInfo_t process) {
  unsigned place = list->count++;
  if (place >= list->room)
    return;
  if (list->layout == LAYOUT_V1)
    ((nvmlProcessInfo_v1_t *)list->rows)[place] = (nvmlProcessInfo_v1_t){process.pid, process.usedGpuMemory};
  else if (list->layout == LAYOUT_V2)
    ((nvmlProcessInfo_v2_t *)list->rows)[place] = process;
  else
    ((nvmlProcessDetail_v1_t *)list->rows)[place] = (nvmlProcessDetail_v1_t){
        .pid = process.pid,
        .usedGpuMemory = process.usedGpuMemory,
        .gpuInstanceId = process.gpuInstanceId,
        .computeInstanceId = process.computeInstanceId,
    };
}

/* ---- who is listed --------------------------------------------------------------------------------------------- */

struct computing {
  struct list *list;
  const struct nvml_processes *but; /* without these */
};

static void add_computing(void *argument, uint32_t pid, uint64_t held_bytes) {
  struct computing *computing = argument;
  uint64_t bytes;
  if (!nvml_processes_find(computing->but, pid, &bytes))
    add(computing->list, (nvmlProcessInfo_t){pid, held_bytes, NO_MIG_INSTANCE, NO_MIG_INSTANCE});
}

/* The driver lists a process that computes through MPS as such only, and one that also draws in both lists. */
static nvmlReturn_t list_computing(nvmlDevice_t handle, const struct device *device, struct list *list) {
  struct nvml_processes mps;
  struct computing computing = {list, &mps};
  if (!nvml_processes_ask(NVML_MPS_PROCESSES, handle, &mps))
    mps.count = 0;
  ledger_visit(process_ledger_view(), device->number, add_computing, &computing);
  nvml_processes_done(&mps);
  return NVML_SUCCESS;
}

static nvmlReturn_t list_of_driver(enum nvml_processes_kind kind, nvmlDevice_t handle, struct list *list) {
  struct nvml_processes running;
  if (!nvml_processes_ask(kind, handle, &running))
    return running.result;
  for (unsigned i = 0; i < running.count; i++)
    if (nvml_view_has_process(running.list[i].pid))
      add(list, running.list[i]);
  nvml_processes_done(&running);
  return NVML_SUCCESS;
}

/* Each process once: what it computes with is counted with what it draws with. */
static nvmlReturn_t list_all(nvmlDevice_t handle, const struct device *device, struct list *list) {
  struct nvml_processes drawing;
  struct computing computing = {list, &drawing};
  if (!nvml_processes_ask(NVML_GRAPHICS_PROCESSES, handle, &drawing))
    drawing.count = 0;
  for (unsigned i = 0; i < drawing.count; i++)
    if (nvml_view_has_process(drawing.list[i].pid))
      add(list, drawing.list[i]);
  ledger_visit(process_ledger_view(), device->number, add_computing, &computing);
  nvml_processes_done(&drawing);
  return NVML_SUCCESS;
}

#define ALL_KINDS                                                                                                      \
  3 /* NVML_PROCESS_MODE_ALL, which NVML has since CUDA 13; the others have the numbers of our kinds                   \
     */

static nvmlReturn_t fill(unsigned kind, nvmlDevice_t handle, const struct device *device, struct list *list) {
  nvmlReturn_t result = NVML_SUCCESS;
  if (device->number < 0) /* not the container's: empty */
    return NVML_SUCCESS;
  if (kind == NVML_COMPUTE_PROCESSES)
    result = list_computing(handle, device, list);
  else if (kind == ALL_KINDS)
    result = list_all(handle, device, list);
  else
    result = list_of_driver(kind, handle, list);
  return result == NVML_SUCCESS && list->count > list->room ? NVML_ERROR_INSUFFICIENT_SIZE : result;
}

/* ---- the functions --------------------------------------------------------------------------------------------- */

/* Arguments that cannot be used are the driver's to judge. */
#define LIST(name, kind, layout, row)                                                                                  \
  nvmlReturn_t name(nvmlDevice_t handle, unsigned int *count, row *rows) {                                             \
    hooks_load_nvml();                                                                                                 \
    struct device *device = count == NULL || (*count > 0 && rows == NULL) ? NULL : nvml_view_device(handle);           \
    if (device == NULL)                                                                                                \
      return real.name(handle, count, rows);                                                                           \
    struct list list = {layout, rows, *count, 0};                                                                      \
    nvmlReturn_t result = fill(kind, handle, device, &list);                                                           \
    *count = list.count;                                                                                               \
    return result;                                                                                                     \
  }

LIST(nvmlDeviceGetComputeRunningProcesses, NVML_COMPUTE_PROCESSES, LAYOUT_V1, nvmlProcessInfo_v1_t)
LIST(nvmlDeviceGetComputeRunningProcesses_v2, NVML_COMPUTE_PROCESSES, LAYOUT_V2, nvmlProcessInfo_v2_t)
LIST(nvmlDeviceGetComputeRunningProcesses_v3, NVML_COMPUTE_PROCESSES, LAYOUT_V2, nvmlProcessInfo_t)
LIST(nvmlDeviceGetGraphicsRunningProcesses, NVML_GRAPHICS_PROCESSES, LAYOUT_V1, nvmlProcessInfo_v1_t)
LIST(nvmlDeviceGetGraphicsRunningProcesses_v2, NVML_GRAPHICS_PROCESSES, LAYOUT_V2, nvmlProcessInfo_v2_t)
LIST(nvmlDeviceGetGraphicsRunningProcesses_v3, NVML_GRAPHICS_PROCESSES, LAYOUT_V2, nvmlProcessInfo_t)
LIST(nvmlDeviceGetMPSComputeRunningProcesses, NVML_MPS_PROCESSES, LAYOUT_V1, nvmlProcessInfo_v1_t)
LIST(nvmlDeviceGetMPSComputeRunningProcesses_v2, NVML_MPS_PROCESSES, LAYOUT_V2, nvmlProcessInfo_v2_t)
LIST(nvmlDeviceGetMPSComputeRunningProcesses_v3, NVML_MPS_PROCESSES, LAYOUT_V2, nvmlProcessInfo_t)

/* Devices that do not have this list go on not having it: the driver is asked first, without room for a row. A mode of
 * a later NVML, which would list everybody, is refused as that of a driver before it. */
nvmlReturn_t nvmlDeviceGetRunningProcessDetailList(nvmlDevice_t handle, nvmlProcessDetailList_t *details) {
  hooks_load_nvml();
  struct device *device = details == NULL ? NULL : nvml_view_device(handle);
  if (device == NULL)
    return real.nvmlDeviceGetRunningProcessDetailList(handle, details);
  nvmlProcessDetailList_t question = {.version = details->version, .mode = details->mode};
  nvmlReturn_t result = real.nvmlDeviceGetRunningProcessDetailList(handle, &question);
  if (result != NVML_SUCCESS && result != NVML_ERROR_INSUFFICIENT_SIZE)
    return result;
  if (details->mode > ALL_KINDS)
    return NVML_ERROR_INVALID_ARGUMENT;
  struct list list = {LAYOUT_DETAIL, details->procArray, details->procArray == NULL ? 0 : details->numProcArrayEntries,
                      0};
  result = fill(details->mode, handle, device, &list);
  details->numProcArrayEntries = list.count;
  return result;
}

/* ---- accounting: what processes did that may have ended ------------------------------------------------------------
 */

nvmlReturn_t nvmlDeviceGetAccountingPids(nvmlDevice_t handle, unsigned int *count, unsigned int *pids) {
  hooks_load_nvml();
  nvmlReturn_t result = real.nvmlDeviceGetAccountingPids(handle, count, pids);
  if (result != NVML_SUCCESS || pids == NULL || nvml_view_device(handle) == NULL)
    return result;
  unsigned kept = 0;
  for (unsigned i = 0; i < *count; i++)
    if (nvml_view_has_process(pids[i]))
      pids[kept++] = pids[i];
  *count = kept;
  return result;
}

nvmlReturn_t nvmlDeviceGetAccountingStats(nvmlDevice_t handle, unsigned int pid, nvmlAccountingStats_t *stats) {
  hooks_load_nvml();
  if (nvml_view_device(handle) != NULL && !nvml_view_has_process(pid))
    return NVML_ERROR_NOT_FOUND;
  return real.nvmlDeviceGetAccountingStats(handle, pid, stats);
}
