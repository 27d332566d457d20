/* The table of real functions: how it is filled, and how an address is routed. Knows no policy. */
#include "hooks.h"

#include "libc_symbols.h"
#include "log.h"

#include <dlfcn.h>
#include <stddef.h>
#include <string.h>

static CUresult no_such_cuda_function(void) {
  return CUDA_ERROR_NOT_FOUND;
}

static nvmlReturn_t no_such_nvml_function(void) {
  return NVML_ERROR_FUNCTION_NOT_FOUND;
}

/* On the platforms of CUDA a function may be called with more arguments than it takes, which makes one function stand
 * in for all that are missing. */
struct real_functions real = {
#define X(f) .f = (__typeof__(real.f))(void (*)(void))no_such_cuda_function,
    CUDA_CAUGHT(X) CUDA_USED(X)
#undef X
#define X(f) .f = (__typeof__(real.f))(void (*)(void))no_such_nvml_function,
        NVML_CAUGHT(X) NVML_USED(X)
#undef X
};

struct row {
  const char *name;
  size_t offset; /* in struct real_functions */
  void *hook;    /* NULL: not caught */
};

#define CAUGHT_ROW(f) {#f, offsetof(struct real_functions, f), (void *)f},
#define USED_ROW(f) {#f, offsetof(struct real_functions, f), NULL},
static const struct row cuda_rows[] = {CUDA_CAUGHT(CAUGHT_ROW) CUDA_USED(USED_ROW)};
static const struct row nvml_rows[] = {NVML_CAUGHT(CAUGHT_ROW) NVML_USED(USED_ROW)};
#define COUNT(rows) (sizeof(rows) / sizeof(rows)[0])

struct library {
  const char *soname;
  const struct row *rows;
  size_t row_count;
  int loaded;
};
static struct library cuda = {"libcuda.so.1", cuda_rows, COUNT(cuda_rows), 0};
static struct library nvml = {"libnvidia-ml.so.1", nvml_rows, COUNT(nvml_rows), 0};

static void **slot(const struct row *row) {
  return (void **)((char *)&real + row->offset);
}

/* Threads may do this at the same time: they store the same values. */
static bool load(struct library *library, int flags) {
  if (__atomic_load_n(&library->loaded, __ATOMIC_ACQUIRE))
    return true;
  void *handle = libc_dlopen(library->soname, RTLD_LAZY | flags);
  if (handle == NULL)
    return false;
  for (size_t i = 0; i < library->row_count; i++) {
    void *address = libc_dlsym(handle, library->rows[i].name);
    if (address != NULL)
      __atomic_store_n(slot(&library->rows[i]), address, __ATOMIC_RELAXED);
    else
      log_line(LOG_DEBUG, "%s has no %s", library->soname, library->rows[i].name);
  }
  __atomic_store_n(&library->loaded, 1, __ATOMIC_RELEASE);
  return true;
}

bool hooks_load_cuda(void) {
  return load(&cuda, RTLD_NOLOAD);
}

bool hooks_load_nvml(void) {
  return load(&nvml, 0);
}

/* Only a library that the program has loaded itself can have answered its lookup. */
static void *route(struct library *library, void *address) {
  if (!load(library, RTLD_NOLOAD))
    return address;
  for (size_t i = 0; i < library->row_count; i++)
    if (library->rows[i].hook != NULL && *slot(&library->rows[i]) == address)
      return library->rows[i].hook;
  return address;
}

void *hooks_route(const char *name, void *address) {
  if (address == NULL || name == NULL)
    return address;
  if (name[0] == 'c' && name[1] == 'u')
    return route(&cuda, address);
  if (strncmp(name, "nvml", 4) == 0)
    return route(&nvml, address);
  return address;
}
