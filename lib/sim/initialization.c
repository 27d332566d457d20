/* cuInit, and what works before it. */
#include "control.h"
#include "driver.h"
#include "mps.h"
#include "restore_thread.h"
#include "visible.h"

static CUresult initialize(void) {
  if (!config_load())
    return CUDA_ERROR_INVALID_VALUE;
  if (visible_find() == 0)
    return CUDA_ERROR_NO_DEVICE;
  clock_wait_until(clock_ns() + sim_config.start_ns);
  if (!driver_join())
    return CUDA_ERROR_OPERATING_SYSTEM;
  CUresult connected = mps_connect();
  if (connected != CUDA_SUCCESS)
    return connected;
  if (!control_open())
    return CUDA_ERROR_OPERATING_SYSTEM;
  if (!restore_thread_start())
    return CUDA_ERROR_OUT_OF_MEMORY;
  driver_set_ready();
  return CUDA_SUCCESS;
}

CUresult CUDAAPI cuInit(unsigned int flags) {
  if (flags != 0)
    return CUDA_ERROR_INVALID_VALUE;
  if (driver_stage() == DRIVER_FORKED)
    return CUDA_ERROR_NOT_INITIALIZED;
  driver_lock_anyway();
  CUresult result = driver_stage() == DRIVER_READY ? CUDA_SUCCESS : initialize();
  driver_unlock();
  return result;
}

/* Works before cuInit and after fork. The answer does not change while the process lives. */
CUresult CUDAAPI cuDriverGetVersion(int *version) {
  if (!version)
    return CUDA_ERROR_INVALID_VALUE;
  if (driver_stage() == DRIVER_NOT_READY) {
    driver_lock_anyway();
    bool good = driver_stage() == DRIVER_READY || config_load();
    driver_unlock();
    if (!good)
      return CUDA_ERROR_INVALID_VALUE;
  }
  *version = (int)(sim_config.cuda_version / 10 * 1000 + sim_config.cuda_version % 10 * 10);
  return CUDA_SUCCESS;
}
