#include "driver.h"

#include <pthread.h>
#include <stdatomic.h>

#include "mps.h"
#include "state.h"
#include "timeline.h"

static _Atomic int driver_state = DRIVER_NOT_READY;
static pthread_mutex_t driver_lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t let_in = PTHREAD_COND_INITIALIZER;
static bool is_kept_out;

/* A context does not survive fork; as on a card, the child cannot use CUDA at all. */
static void after_fork_in_child(void) {
  int ready = DRIVER_READY;
  atomic_compare_exchange_strong(&driver_state, &ready, DRIVER_FORKED);
  mps_leave_after_fork();
  state_leave_after_fork();
  timeline_leave_after_fork();
}

enum driver_stage driver_stage(void) {
  return (enum driver_stage)atomic_load(&driver_state);
}

void driver_set_ready(void) {
  atomic_store(&driver_state, DRIVER_READY);
}

bool driver_join(void) {
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

CUresult driver_open_state(void) {
  pthread_mutex_lock(&driver_lock);
  bool good = config_load() && state_open();
  pthread_mutex_unlock(&driver_lock);
  return good ? CUDA_SUCCESS : CUDA_ERROR_OPERATING_SYSTEM;
}

bool driver_join_state(void) {
  pthread_mutex_lock(&driver_lock);
  bool good = config_load() && driver_join();
  pthread_mutex_unlock(&driver_lock);
  return good;
}

CUresult driver_check_ready(void) {
  return driver_stage() == DRIVER_READY ? CUDA_SUCCESS : CUDA_ERROR_NOT_INITIALIZED;
}

CUresult driver_enter(void) {
  FORWARD_IF_ERROR(driver_check_ready());
  CUresult result = mps_state();
  if (result != CUDA_SUCCESS)
    return result;
  pthread_mutex_lock(&driver_lock);
  while (is_kept_out)
    pthread_cond_wait(&let_in, &driver_lock);
  return CUDA_SUCCESS;
}

void driver_lock_anyway(void) {
  pthread_mutex_lock(&driver_lock);
}

void driver_unlock(void) {
  pthread_mutex_unlock(&driver_lock);
}

void driver_keep_out(void) {
  is_kept_out = true;
}

void driver_let_in(void) {
  is_kept_out = false;
  pthread_cond_broadcast(&let_in);
}

CUresult driver_leave(CUresult result) {
  pthread_mutex_unlock(&driver_lock);
  return result;
}
