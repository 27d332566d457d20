#include "modules.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "capture.h"
#include "device_memory.h"
#include "images.h"
#include "pools.h"
#include "state.h"

/* A module belongs to a context, a library (context NULL) to the process. */
struct module {
  void *handle;
  const struct context *context;
  const struct module *library; /* a module that stands for a library in one context */
  uint64_t global_bytes;        /* globals of its image; in device memory where the module has a context */
};

const struct kernel *kernel_find(CUfunction function) {
  const struct kernel *kernel = handle_object(HANDLE_FUNCTION, function);
  return kernel ? kernel : handle_object(HANDLE_KERNEL, function);
}

static uint64_t charge_of(const struct context *context, uint64_t global_bytes) {
  return context ? round_up(global_bytes, DEVICE_PAGE) : 0;
}

static CUresult new_module(enum handle_kind kind, const struct context *context, const struct module *library,
                           uint64_t global_bytes, void **handle) {
  uint64_t charge = charge_of(context, global_bytes);
  if (charge && !pools_take_memory(context->device, charge))
    return CUDA_ERROR_OUT_OF_MEMORY;
  struct module *module = calloc(1, sizeof *module);
  if (module)
    module->handle = handle_new(kind, module);
  if (!module || !module->handle) {
    free(module);
    if (charge)
      state_release(context->device, charge);
    return CUDA_ERROR_OUT_OF_MEMORY;
  }
  module->global_bytes = global_bytes;
  module->context = context;
  module->library = library;
  *handle = module->handle;
  return CUDA_SUCCESS;
}

static void delete_kernel_of(void *object, void *owner) {
  struct kernel *kernel = object;
  if (kernel->owner != owner)
    return;
  handle_delete(kernel->handle);
  free(kernel->name);
  free(kernel);
}

static void delete_module(struct module *module) {
  if (module->context)
    state_release(module->context->device, charge_of(module->context, module->global_bytes));
  handle_visit(HANDLE_FUNCTION, delete_kernel_of, module);
  handle_visit(HANDLE_KERNEL, delete_kernel_of, module);
  handle_delete(module->handle);
  free(module);
}

static void delete_if_of_context(void *object, void *context) {
  struct module *module = object;
  if (module->context == context)
    delete_module(module);
}

static void delete_if_of_library(void *object, void *library) {
  struct module *module = object;
  if (module->library == library)
    delete_module(module);
}

void modules_delete_of(const struct context *context) {
  handle_visit(HANDLE_MODULE, delete_if_of_context, (void *)context);
}

struct search {
  const void *owner;
  const char *name;
  struct kernel *found;
};

static void look_for_kernel(void *object, void *argument) {
  struct kernel *kernel = object;
  struct search *search = argument;
  if (kernel->owner == search->owner && strcmp(kernel->name, search->name) == 0)
    search->found = kernel;
}

/* The same name gives the same handle. */
static CUresult get_kernel(enum handle_kind kind, const struct module *owner, const char *name, void **handle) {
  struct search search = {owner, name, NULL};
  if (*name == '\0')
    return CUDA_ERROR_NOT_FOUND;
  handle_visit(kind, look_for_kernel, &search);
  if (search.found) {
    *handle = search.found->handle;
    return CUDA_SUCCESS;
  }
  struct kernel *kernel = calloc(1, sizeof *kernel);
  if (kernel) {
    *kernel = (struct kernel){.owner = owner,
                              .context = owner->context,
                              .duration_ns = config_kernel_ns(name),
                              .name = strdup(name),
                              .handle = handle_new(kind, kernel)};
    if (kernel->name && kernel->handle) {
      *handle = kernel->handle;
      return CUDA_SUCCESS;
    }
    handle_delete(kernel->handle);
    free(kernel->name);
  }
  free(kernel);
  return CUDA_ERROR_OUT_OF_MEMORY;
}

static CUresult load_module(CUmodule *module, const void *image) {
  struct context *context;
  void *handle;
  FORWARD_IF_ERROR(context_enter(&context));
  if (!module || !image)
    return driver_leave(CUDA_ERROR_INVALID_VALUE);
  CUresult result = capture_check_unsafe_call();
  if (result == CUDA_SUCCESS)
    result = new_module(HANDLE_MODULE, context, NULL, image_global_bytes(image), &handle);
  if (result == CUDA_SUCCESS)
    *module = handle;
  return driver_leave(result);
}

/* Text, which ends before the first zero byte; to be freed. */
static CUresult read_image(const char *path, char **image) {
  FILE *file = fopen(path, "re");
  size_t capacity = 0;
  if (!file)
    return CUDA_ERROR_FILE_NOT_FOUND;
  ssize_t length = getdelim(image, &capacity, '\0', file);
  fclose(file);
  if (length < 0 && *image)
    **image = '\0'; /* nothing was in it */
  return *image ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

CUresult CUDAAPI cuModuleLoadData(CUmodule *module, const void *image) {
  return load_module(module, image);
}

CUresult CUDAAPI cuModuleLoadDataEx(CUmodule *module, const void *image, unsigned int option_count,
                                    CUjit_option *options, void **option_values) {
  if (driver_check_ready() != CUDA_SUCCESS)
    return CUDA_ERROR_NOT_INITIALIZED;
  (void)options, (void)option_values;
  return option_count && (!options || !option_values) ? CUDA_ERROR_INVALID_VALUE : load_module(module, image);
}

CUresult CUDAAPI cuModuleLoadFatBinary(CUmodule *module, const void *image) {
  return load_module(module, image);
}

CUresult CUDAAPI cuModuleLoad(CUmodule *module, const char *path) {
  if (driver_check_ready() != CUDA_SUCCESS)
    return CUDA_ERROR_NOT_INITIALIZED;
  char *image = NULL;
  CUresult result = path ? read_image(path, &image) : CUDA_SUCCESS;
  if (result == CUDA_SUCCESS)
    result = load_module(module, image);
  free(image);
  return result;
}

CUresult CUDAAPI cuModuleUnload(CUmodule handle) {
  FORWARD_IF_ERROR(driver_enter());
  struct module *module = handle_object(HANDLE_MODULE, handle);
  if (!module || module->library)
    return driver_leave(CUDA_ERROR_INVALID_HANDLE);
  CUresult result = capture_check_unsafe_call();
  if (result == CUDA_SUCCESS)
    delete_module(module);
  return driver_leave(result);
}

CUresult CUDAAPI cuModuleGetFunction(CUfunction *function, CUmodule handle, const char *name) {
  void *kernel;
  FORWARD_IF_ERROR(driver_enter());
  const struct module *module = handle_object(HANDLE_MODULE, handle);
  if (!function || !name)
    return driver_leave(CUDA_ERROR_INVALID_VALUE);
  if (!module)
    return driver_leave(CUDA_ERROR_INVALID_HANDLE);
  CUresult result = get_kernel(HANDLE_FUNCTION, module, name, &kernel);
  if (result == CUDA_SUCCESS)
    *function = kernel;
  return driver_leave(result);
}

CUresult CUDAAPI cuModuleGetLoadingMode(CUmoduleLoadingMode *mode) {
  FORWARD_IF_ERROR(driver_enter());
  if (!mode)
    return driver_leave(CUDA_ERROR_INVALID_VALUE);
  *mode = CU_MODULE_LAZY_LOADING;
  return driver_leave(CUDA_SUCCESS);
}

CUresult CUDAAPI cuLibraryLoadData(CUlibrary *library, const void *code, CUjit_option *jit_options, void **jit_values,
                                   unsigned int jit_count, CUlibraryOption *options, void **values,
                                   unsigned int count) {
  void *handle;
  FORWARD_IF_ERROR(driver_enter());
  (void)jit_values, (void)values;
  if (!library || !code || (jit_count && !jit_options) || (count && !options))
    return driver_leave(CUDA_ERROR_INVALID_VALUE);
  CUresult result = new_module(HANDLE_LIBRARY, NULL, NULL, image_global_bytes(code), &handle);
  if (result == CUDA_SUCCESS)
    *library = handle;
  return driver_leave(result);
}

CUresult CUDAAPI cuLibraryLoadFromFile(CUlibrary *library, const char *path, CUjit_option *jit_options,
                                       void **jit_values, unsigned int jit_count, CUlibraryOption *options,
                                       void **values, unsigned int count) {
  if (driver_check_ready() != CUDA_SUCCESS)
    return CUDA_ERROR_NOT_INITIALIZED;
  char *image = NULL;
  CUresult result = path ? read_image(path, &image) : CUDA_ERROR_INVALID_VALUE;
  if (result == CUDA_SUCCESS)
    result = cuLibraryLoadData(library, image, jit_options, jit_values, jit_count, options, values, count);
  free(image);
  return result;
}

CUresult CUDAAPI cuLibraryUnload(CUlibrary handle) {
  FORWARD_IF_ERROR(driver_enter());
  struct module *library = handle_object(HANDLE_LIBRARY, handle);
  if (!library)
    return driver_leave(CUDA_ERROR_INVALID_HANDLE);
  handle_visit(HANDLE_MODULE, delete_if_of_library, library);
  delete_module(library);
  return driver_leave(CUDA_SUCCESS);
}

CUresult CUDAAPI cuLibraryGetKernel(CUkernel *kernel, CUlibrary handle, const char *name) {
  void *found;
  FORWARD_IF_ERROR(driver_enter());
  const struct module *library = handle_object(HANDLE_LIBRARY, handle);
  if (!kernel || !name)
    return driver_leave(CUDA_ERROR_INVALID_VALUE);
  if (!library)
    return driver_leave(CUDA_ERROR_INVALID_HANDLE);
  CUresult result = get_kernel(HANDLE_KERNEL, library, name, &found);
  if (result == CUDA_SUCCESS)
    *kernel = found;
  return driver_leave(result);
}

static void look_for_module(void *object, void *argument) {
  struct module *module = object, *wanted = argument;
  if (module->library == wanted->library && module->context == wanted->context)
    wanted->handle = module->handle;
}

CUresult CUDAAPI cuLibraryGetModule(CUmodule *module, CUlibrary handle) {
  struct context *context;
  CUresult result = context_enter(&context);
  if (result != CUDA_SUCCESS)
    return result;
  const struct module *library = handle_object(HANDLE_LIBRARY, handle);
  if (!module)
    return driver_leave(CUDA_ERROR_INVALID_VALUE);
  if (!library)
    return driver_leave(CUDA_ERROR_INVALID_HANDLE);
  struct module wanted = {.context = context, .library = library};
  handle_visit(HANDLE_MODULE, look_for_module, &wanted);
  if (!wanted.handle)
    result = new_module(HANDLE_MODULE, context, library, library->global_bytes, &wanted.handle);
  if (result == CUDA_SUCCESS)
    *module = wanted.handle;
  return driver_leave(result);
}

/* A kernel of a library serves as a function in every context: the handle is the same. */
CUresult CUDAAPI cuKernelGetFunction(CUfunction *function, CUkernel kernel) {
  struct context *context;
  FORWARD_IF_ERROR(context_enter(&context));
  if (!function)
    return driver_leave(CUDA_ERROR_INVALID_VALUE);
  if (!handle_object(HANDLE_KERNEL, kernel))
    return driver_leave(CUDA_ERROR_INVALID_HANDLE);
  *function = (CUfunction)kernel;
  return driver_leave(CUDA_SUCCESS);
}
