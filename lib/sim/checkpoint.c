/* The checkpoint interface as another process calls it: the restore thread of the process does the work. */
#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>

#include "checkpoint_api.h"
#include "driver.h"
#include "futex.h"
#include "state.h"

#define FIRST_DRIVER 570
#define POLL_INTERVAL_NS (10 * NS_PER_MS)
#define THREAD_STARTS_NS NS_PER_S

/* The lock on a process's requests keeps other processes out, and this one threads. */
static pthread_mutex_t one_caller = PTHREAD_MUTEX_INITIALIZER;

/* Works without cuInit, over processes whose memory the caller might read as well. */
static CUresult find_process(int pid, unsigned *slot) {
  FORWARD_IF_ERROR(driver_open_state());
  if (atol(sim_config.driver_version) < FIRST_DRIVER)
    return CUDA_ERROR_NOT_SUPPORTED;
  if (pid <= 0 || !state_find_process((uint32_t)pid, slot))
    return CUDA_ERROR_INVALID_VALUE;
  return kill(pid, 0) != 0 && errno == EPERM ? CUDA_ERROR_OPERATING_SYSTEM : CUDA_SUCCESS;
}

/* A process has just started, or it is of those that have no such thread. */
static CUresult await_thread(unsigned slot) {
  _Atomic uint32_t *thread_id = &state_process(slot)->checkpoint.thread_id;
  uint64_t give_up_ns = clock_ns() + THREAD_STARTS_NS;
  while (atomic_load(thread_id) == 0) {
    if (!state_slot_is_live(slot))
      return CUDA_ERROR_INVALID_VALUE;
    if (clock_ns() > give_up_ns)
      return CUDA_ERROR_NOT_SUPPORTED;
    futex_wait(thread_id, 0, POLL_INTERVAL_NS);
  }
  return CUDA_SUCCESS;
}

/* False when the process has ended. */
static bool await_answer(unsigned slot) {
  _Atomic uint32_t *request = &state_process(slot)->checkpoint.request;
  uint32_t seen;
  while ((seen = atomic_load(request)) != CHECKPOINT_NOTHING) {
    if (!state_slot_is_live(slot))
      return false;
    futex_wait(request, seen, POLL_INTERVAL_NS);
  }
  return true;
}

/* A request of a caller that has died is served to its end first. */
static CUresult ask(unsigned slot, enum checkpoint_request request, const struct state_checkpoint *with) {
  struct state_process *process = state_process(slot);
  struct state_checkpoint *checkpoint = &process->checkpoint;
  uint32_t pid = atomic_load(&process->pid);
  FORWARD_IF_ERROR(await_thread(slot));
  if (!await_answer(slot))
    return CUDA_ERROR_INVALID_VALUE;
  checkpoint->timeout_ms = with->timeout_ms;
  checkpoint->pair_count = with->pair_count;
  memcpy(checkpoint->pairs, with->pairs, sizeof checkpoint->pairs);
  atomic_store(&checkpoint->request, request);
  futex_wake(&checkpoint->request);
  bool is_same = await_answer(slot) && atomic_load(&process->pid) == pid;
  return is_same ? (CUresult)atomic_load(&checkpoint->answer) : CUDA_ERROR_INVALID_VALUE;
}

static CUresult request(int pid, enum checkpoint_request what, const struct state_checkpoint *with) {
  unsigned slot;
  FORWARD_IF_ERROR(find_process(pid, &slot));
  pthread_mutex_lock(&one_caller);
  CUresult result = CUDA_ERROR_INVALID_VALUE;
  if (state_begin_request(slot)) {
    result = ask(slot, what, with);
    state_end_request(slot);
  }
  pthread_mutex_unlock(&one_caller);
  return result;
}

static bool is_zero(const void *bytes, size_t size) {
  for (const char *byte = bytes; size > 0; size--, byte++)
    if (*byte)
      return false;
  return true;
}

CUresult CUDAAPI cuCheckpointProcessLock(int pid, CUcheckpointLockArgs *args) {
  struct state_checkpoint with = {.timeout_ms = args ? args->timeoutMs : 0};
  if (args && (args->reserved0 || !is_zero(args->reserved1, sizeof args->reserved1)))
    return CUDA_ERROR_INVALID_VALUE;
  return request(pid, CHECKPOINT_LOCK, &with);
}

/* Storage of the caller's own is not simulated. */
CUresult CUDAAPI cuCheckpointProcessCheckpoint(int pid, CUcheckpointCheckpointArgs *args) {
  if (args && !is_zero(args, sizeof *args))
    return CUDA_ERROR_NOT_SUPPORTED;
  return request(pid, CHECKPOINT_SAVE, &(struct state_checkpoint){0});
}

CUresult CUDAAPI cuCheckpointProcessRestore(int pid, CUcheckpointRestoreArgs *args) {
  struct state_checkpoint with = {.pair_count = args ? args->gpuPairsCount : 0};
  if (with.pair_count > SIM_MAX_DEVICES || (with.pair_count && !args->gpuPairs))
    return CUDA_ERROR_INVALID_VALUE;
  const char *rest = args ? (const char *)&args->gpuPairsCount + sizeof args->gpuPairsCount : NULL;
  if (args && !is_zero(rest, (size_t)((const char *)(args + 1) - rest)))
    return CUDA_ERROR_NOT_SUPPORTED;
  for (unsigned i = 0; i < with.pair_count; i++) {
    memcpy(with.pairs[i].old_uuid, args->gpuPairs[i].oldUuid.bytes, sizeof with.pairs[i].old_uuid);
    memcpy(with.pairs[i].new_uuid, args->gpuPairs[i].newUuid.bytes, sizeof with.pairs[i].new_uuid);
  }
  return request(pid, CHECKPOINT_RESTORE, &with);
}

CUresult CUDAAPI cuCheckpointProcessUnlock(int pid, CUcheckpointUnlockArgs *args) {
  if (args && !is_zero(args, sizeof *args))
    return CUDA_ERROR_INVALID_VALUE;
  return request(pid, CHECKPOINT_UNLOCK, &(struct state_checkpoint){0});
}

CUresult CUDAAPI cuCheckpointProcessGetState(int pid, CUprocessState *state) {
  unsigned slot;
  if (!state)
    return CUDA_ERROR_INVALID_VALUE;
  CUresult result = find_process(pid, &slot);
  if (result == CUDA_SUCCESS)
    *state = (CUprocessState)atomic_load(&state_process(slot)->checkpoint.process_state);
  return result;
}

CUresult CUDAAPI cuCheckpointProcessGetRestoreThreadId(int pid, int *tid) {
  unsigned slot;
  if (!tid)
    return CUDA_ERROR_INVALID_VALUE;
  FORWARD_IF_ERROR(find_process(pid, &slot));
  struct state_process *process = state_process(slot);
  CUresult result = await_thread(slot);
  if (result != CUDA_SUCCESS)
    return result;
  if (atomic_load(&process->pid) != (uint32_t)pid) /* another PID namespace: the thread has another number here */
    return CUDA_ERROR_NOT_SUPPORTED;
  *tid = (int)atomic_load(&process->checkpoint.thread_id);
  return CUDA_SUCCESS;
}
