#include "driver.h"

#include <pthread.h>
#include <stdatomic.h>

#include "contexts.h"
#include "control.h"
#include "pools.h"
#include "restore_thread.h"
#include "state.h"
#include "timeline.h"
#include "times.h"
#include "visible.h"

enum { NOT_INITIALIZED, READY, FORKED };

static _Atomic int driver_state = NOT_INITIALIZED;
static pthread_mutex_t driver_lock = PTHREAD_MUTEX_INITIALIZER;

/* A context does not survive fork; as on a card, the child cannot use CUDA at all. */
static void after_fork_in_child(void) {
  int ready = READY;
  atomic_compare_exchange_strong(&driver_state, &ready, FORKED);
  state_leave_after_fork();
  timeline_leave_after_fork();
}

static bool join_state(void) {
  static bool leaves_after_fork;
  if (!state_open())
    return false;
  if (state_own_slot() != STATE_NO_SLOT)
    return true;
  if (!leaves_after_fork && pthread_atfork(NULL, NULL, after_fork_in_child) != 0)
    return false;
  leaves_after_fork = true;
  if (!state_join())
    return false;
  timeline_join();
  return true;
}

static CUresult initialize(void) {
  if (!config_load())
    return CUDA_ERROR_INVALID_VALUE;
  if (visible_find() == 0)
    return CUDA_ERROR_NO_DEVICE;
  clock_wait_until(clock_ns() + sim_config.start_ns);
  if (!join_state() || !control_open())
    return CUDA_ERROR_OPERATING_SYSTEM;
  if (!restore_thread_start(&driver_lock))
    return CUDA_ERROR_OUT_OF_MEMORY;
  atomic_store(&driver_state, READY);
  return CUDA_SUCCESS;
}

CUresult CUDAAPI cuInit(unsigned int flags) {
  if (flags != 0)
    return CUDA_ERROR_INVALID_VALUE;
  if (atomic_load(&driver_state) == FORKED)
    return CUDA_ERROR_NOT_INITIALIZED;
  pthread_mutex_lock(&driver_lock);
  CUresult result = atomic_load(&driver_state) == READY ? CUDA_SUCCESS : initialize();
  pthread_mutex_unlock(&driver_lock);
  return result;
}

/* Works before cuInit and after fork. The answer does not change while the process lives. */
CUresult CUDAAPI cuDriverGetVersion(int *version) {
  if (!version)
    return CUDA_ERROR_INVALID_VALUE;
  if (atomic_load(&driver_state) == NOT_INITIALIZED) {
    pthread_mutex_lock(&driver_lock);
    bool good = atomic_load(&driver_state) == READY || config_load();
    pthread_mutex_unlock(&driver_lock);
    if (!good)
      return CUDA_ERROR_INVALID_VALUE;
  }
  *version = (int)(sim_config.cuda_version / 10 * 1000 + sim_config.cuda_version % 10 * 10);
  return CUDA_SUCCESS;
}

CUresult driver_open_state(void) {
  pthread_mutex_lock(&driver_lock);
  bool good = config_load() && state_open();
  pthread_mutex_unlock(&driver_lock);
  return good ? CUDA_SUCCESS : CUDA_ERROR_OPERATING_SYSTEM;
}

bool driver_join_state(void) {
  pthread_mutex_lock(&driver_lock);
  bool good = config_load() && join_state();
  pthread_mutex_unlock(&driver_lock);
  return good;
}

CUresult driver_check_ready(void) {
  return atomic_load(&driver_state) == READY ? CUDA_SUCCESS : CUDA_ERROR_NOT_INITIALIZED;
}

CUresult driver_enter(void) {
  CUresult result = driver_check_ready();
  if (result != CUDA_SUCCESS)
    return result;
  pthread_mutex_lock(&driver_lock);
  restore_thread_wait_until_unlocked(&driver_lock);
  return CUDA_SUCCESS;
}

CUresult driver_enter_context(struct context **context) {
  CUresult result = driver_enter();
  if (result != CUDA_SUCCESS)
    return result;
  result = context_current(context);
  return result == CUDA_SUCCESS ? CUDA_SUCCESS : driver_leave(result);
}

CUresult driver_leave(CUresult result) {
  pthread_mutex_unlock(&driver_lock);
  return result;
}

CUresult driver_leave_and_wait(uint64_t until_ns) {
  while (!time_has_come(until_ns)) {
    driver_leave(CUDA_SUCCESS);
    time_wait(until_ns);
    CUresult result = driver_enter();
    if (result != CUDA_SUCCESS)
      return result;
  }
  pools_give_back_unused();
  return driver_leave(CUDA_SUCCESS);
}
