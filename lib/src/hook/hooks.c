/* The table of real functions, and how it is filled. */
#include "hook/hooks.h"

#include "base/libc_symbols.h"
#include "base/log.h"

#include <dlfcn.h>
#include <stddef.h>

static CUresult no_such_cuda_function(void) {
  return CUDA_ERROR_NOT_FOUND;
}

static nvmlReturn_t no_such_nvml_function(void) {
  return NVML_ERROR_FUNCTION_NOT_FOUND;
}

/* On the platforms of CUDA a function may be called with more arguments than it takes, which makes one function stand
 * in for all that are missing. */
HOT_DATA struct real_functions real = {
#define X(f) .f = (__typeof__(real.f))(void (*)(void))no_such_cuda_function,
    CUDA_LOOKUP(X) CUDA_CAUGHT(X) CUDA_PROFILED(X) CUDA_USED(X)
#undef X
#define X(f) .f = (__typeof__(real.f))(void (*)(void))no_such_nvml_function,
        NVML_CAUGHT(X) NVML_USED(X)
#undef X
};

struct row {
  const char *name;
  void **real;
};

#define ROW(f) {#f, (void **)&real.f},
static const struct row cuda_rows[] = {CUDA_LOOKUP(ROW) CUDA_CAUGHT(ROW) CUDA_PROFILED(ROW) CUDA_USED(ROW)};
static const struct row nvml_rows[] = {NVML_CAUGHT(ROW) NVML_USED(ROW)};
#define COUNT(rows) (sizeof(rows) / sizeof(rows)[0])

struct library {
  const char *soname;
  const struct row *rows;
  size_t row_count;
  void *handle;
  int loaded;
};
static struct library cuda = {.soname = "libcuda.so.1", .rows = cuda_rows, .row_count = COUNT(cuda_rows)};
static struct library nvml = {.soname = "libnvidia-ml.so.1", .rows = nvml_rows, .row_count = COUNT(nvml_rows)};

static bool is_loaded(const struct library *library) {
  return __atomic_load_n(&library->loaded, __ATOMIC_ACQUIRE);
}

/* Threads may do this at the same time: they store the same values. */
static bool load(struct library *library, int flags) {
  if (is_loaded(library))
    return true;
  void *handle = libc_dlopen(library->soname, RTLD_LAZY | flags);
  if (handle == NULL)
    return false;
  for (size_t i = 0; i < library->row_count; i++) {
    void *address = libc_dlsym(handle, library->rows[i].name);
    if (address != NULL)
      __atomic_store_n(library->rows[i].real, address, __ATOMIC_RELAXED);
    else
      log_line(LOG_DEBUG, "%s has no %s", library->soname, library->rows[i].name);
  }
  library->handle = handle;
  __atomic_store_n(&library->loaded, 1, __ATOMIC_RELEASE);
  return true;
}

bool hooks_load_cuda(void) {
  return load(&cuda, RTLD_NOLOAD);
}

void *hooks_cuda_handle(void) {
  return hooks_load_cuda() ? cuda.handle : NULL;
}

bool hooks_load_nvml(void) {
  return load(&nvml, 0);
}

void hooks_load_nvml_if_there(void) {
  load(&nvml, RTLD_NOLOAD);
}

bool hooks_cuda_is_loaded(void) {
  return is_loaded(&cuda);
}

bool hooks_nvml_is_loaded(void) {
  return is_loaded(&nvml);
}

bool hooks_is_missing(const void *function) {
  return function == (void *)no_such_cuda_function || function == (void *)no_such_nvml_function;
}
