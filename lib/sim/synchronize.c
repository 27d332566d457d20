#include "synchronize.h"

#include "pools.h"
#include "times.h"

CUresult synchronize_and_leave(uint64_t until_ns) {
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
