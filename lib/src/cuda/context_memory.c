/* Memory that a context takes after it was made: code, stacks and heaps, streams, and contexts that share it. */
#include "cuda/reserve.h"
#include "device/process.h"
#include "memory/ledger.h"

/* ---- limits of a context ----------------------------------------------------------------------------------------- */

/* Measured on driver 580: every thread that the device can run at a time has its stack, at once. */
static uint64_t threads_at_a_time(void) {
  CUdevice ordinal;
  int processors = 0, threads = 0;
  if (real.cuCtxGetDevice(&ordinal) != CUDA_SUCCESS)
    return 0;
  real.cuDeviceGetAttribute(&processors, CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT, ordinal);
  real.cuDeviceGetAttribute(&threads, CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_MULTIPROCESSOR, ordinal);
  return processors > 0 && threads > 0 ? (uint64_t)processors * (uint64_t)threads : 0;
}

/* The memory that a limit of the context lets the driver take. The buffers of printf and malloc it takes only when a
 * kernel with such a call runs, which nothing can undo: so they have to fit when they are asked for. */
static uint64_t bytes_of_limit(CUlimit limit, uint64_t value) {
  uint64_t times = limit == CU_LIMIT_STACK_SIZE                                               ? threads_at_a_time()
                   : limit == CU_LIMIT_PRINTF_FIFO_SIZE || limit == CU_LIMIT_MALLOC_HEAP_SIZE ? 1
                                                                                              : 0;
  uint64_t bytes;
  return __builtin_mul_overflow(value, times, &bytes) ? UINT64_MAX : bytes;
}

HOOK CUresult cuCtxSetLimit(CUlimit limit, size_t value) {
  struct device *device = measured_device();
  size_t before = 0;
  if (device == NULL || real.cuCtxGetLimit(&before, limit) != CUDA_SUCCESS)
    return real.cuCtxSetLimit(limit, value);
  uint64_t at_least_bytes = value > before ? bytes_of_limit(limit, value - before) : 0;
  struct measured_allocation measured = measured_allocation(device, at_least_bytes);
  while (measured_begin(&measured))
    if (measured_passes_limit(&measured, real.cuCtxSetLimit(limit, value)))
      real.cuCtxSetLimit(limit, before);
  return measured.result;
}

/* ---- streams ------------------------------------------------------------------------------------------------------
 */

#define CREATE_STREAM(name, parameters, ...)                                                                           \
  MEASURED_HOOK(name, stream, cuStreamDestroy_v2, STREAM_BYTES, parameters, __VA_ARGS__)

CREATE_STREAM(cuStreamCreate, (CUstream * stream, unsigned flags), flags)
CREATE_STREAM(cuStreamCreateWithPriority, (CUstream * stream, unsigned flags, int priority), flags, priority)

/* ---- modules and libraries ---------------------------------------------------------------------------------------
 */

/* Code and global variables. A module takes their memory when it is loaded, a library too with
 * CUDA_MODULE_LOADING=EAGER. Loaded lazily, which is the default, a library takes it with the first use of a kernel or
 * variable, when nothing can be undone any more: that is seen afterwards, as overhead. */
#define LOAD_MODULE(name, parameters, ...) MEASURED_HOOK(name, module, cuModuleUnload, 0, parameters, __VA_ARGS__)

LOAD_MODULE(cuModuleLoad, (CUmodule * module, const char *path), path)
LOAD_MODULE(cuModuleLoadData, (CUmodule * module, const void *image), image)
LOAD_MODULE(cuModuleLoadDataEx,
            (CUmodule * module, const void *image, unsigned count, CUjit_option *options, void **values), image, count,
            options, values)
LOAD_MODULE(cuModuleLoadFatBinary, (CUmodule * module, const void *image), image)

HOOK CUresult cuModuleUnload(CUmodule module) {
  struct device *device = measured_device();
  return measured_undone(device, real.cuModuleUnload(module));
}

/* A library may be loaded without a context: then nothing is taken yet. */
#define LOAD_LIBRARY(name, source_type)                                                                                \
  MEASURED_HOOK(name, library, cuLibraryUnload, 0,                                                                     \
                (CUlibrary * library, source_type source, CUjit_option * jit_options, void **jit_values,               \
                 unsigned jit_count, CUlibraryOption *options, void **values, unsigned count),                         \
                source, jit_options, jit_values, jit_count, options, values, count)

LOAD_LIBRARY(cuLibraryLoadData, const void *)
LOAD_LIBRARY(cuLibraryLoadFromFile, const char *)

HOOK CUresult cuLibraryUnload(CUlibrary library) {
  struct device *device = measured_device();
  return measured_undone(device, real.cuLibraryUnload(library));
}
