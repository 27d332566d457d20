/*
 * Modules and libraries: their code and their global variables are device memory. A module takes it when it is loaded,
 * a library too with CUDA_MODULE_LOADING=EAGER. Loaded lazily, which is the default, a library takes it with the first
 * use of a kernel or variable, when nothing can be undone any more: that is seen afterwards, as overhead.
 */
#include "cuda/reserve.h"

static CUresult end_module(const struct measured_allocation *measured, CUresult result, CUmodule made,
                           CUmodule *module) {
  if (measured_passes_limit(measured, result)) {
    real.cuModuleUnload(made);
    return measured_refuse(measured);
  }
  if (result == CUDA_SUCCESS)
    *module = made;
  return result;
}

#define LOAD_MODULE(name, parameters, ...)                                                                             \
  HOOK CUresult name parameters {                                                                                      \
    struct device *device = measured_device();                                                                         \
    if (device == NULL || module == NULL)                                                                              \
      return real.name(module, __VA_ARGS__);                                                                           \
    struct measured_allocation measured;                                                                               \
    CUmodule made = NULL;                                                                                              \
    CUresult result = measured_begin(&measured, device, 0);                                                            \
    if (result != CUDA_SUCCESS)                                                                                        \
      return result;                                                                                                   \
    result = real.name(&made, __VA_ARGS__);                                                                            \
    return end_module(&measured, result, made, module);                                                                \
  }

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
static CUresult end_library(const struct measured_allocation *measured, CUresult result, CUlibrary made,
                            CUlibrary *library) {
  if (measured_passes_limit(measured, result)) {
    real.cuLibraryUnload(made);
    return measured_refuse(measured);
  }
  if (result == CUDA_SUCCESS)
    *library = made;
  return result;
}

#define LOAD_LIBRARY(name, source_type)                                                                                \
  HOOK CUresult name(CUlibrary *library, source_type source, CUjit_option *jit_options, void **jit_values,             \
                     unsigned jit_count, CUlibraryOption *options, void **values, unsigned count) {                    \
    struct device *device = measured_device();                                                                         \
    if (device == NULL || library == NULL)                                                                             \
      return real.name(library, source, jit_options, jit_values, jit_count, options, values, count);                   \
    struct measured_allocation measured;                                                                               \
    CUlibrary made = NULL;                                                                                             \
    CUresult result = measured_begin(&measured, device, 0);                                                            \
    if (result != CUDA_SUCCESS)                                                                                        \
      return result;                                                                                                   \
    result = real.name(&made, source, jit_options, jit_values, jit_count, options, values, count);                     \
    return end_library(&measured, result, made, library);                                                              \
  }

LOAD_LIBRARY(cuLibraryLoadData, const void *)
LOAD_LIBRARY(cuLibraryLoadFromFile, const char *)

HOOK CUresult cuLibraryUnload(CUlibrary library) {
  struct device *device = measured_device();
  return measured_undone(device, real.cuLibraryUnload(library));
}
