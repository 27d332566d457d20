/*
 * Modules and libraries: their code and their global variables are device memory. A module takes it when it is loaded,
 * a library too with CUDA_MODULE_LOADING=EAGER. Loaded lazily, which is the default, a library takes it with the first
 * use of a kernel or variable, when nothing can be undone any more: that is seen afterwards, as overhead.
 */
#include "cuda/reserve.h"

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
