/* The table of real functions: how it is filled, and how an address is routed. Knows no policy. */
#include "hooks.h"

#include "libc_symbols.h"
#include "log.h"
#include "profile_wanted.h"
#include "text.h"

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
  size_t offset;      /* in struct real_functions */
  void *hook;         /* NULL: not caught */
  bool only_profiled; /* caught while there is a profile */
};

#define ENTERED_ROW(f) {#f, offsetof(struct real_functions, f), (void *)entry_##f, false},
#define PROFILED_ROW(f) {#f, offsetof(struct real_functions, f), (void *)entry_##f, true},
#define USED_ROW(f) {#f, offsetof(struct real_functions, f), NULL, false},
static const struct row cuda_rows[] = {CUDA_LOOKUP(ENTERED_ROW) CUDA_CAUGHT(ENTERED_ROW) CUDA_PROFILED(PROFILED_ROW)
                                           CUDA_USED(USED_ROW)};
static const struct row nvml_rows[] = {NVML_CAUGHT(ENTERED_ROW) NVML_USED(USED_ROW)};
#define COUNT(rows) (sizeof(rows) / sizeof(rows)[0])

struct library {
  const char *soname;
  const char *prefix; /* of its functions' names */
  const struct row *rows;
  size_t row_count;
  void *missing; /* stands in for what it does not have */
  int loaded;
};
static struct library cuda = {.soname = "libcuda.so.1",
                              .prefix = "cu",
                              .rows = cuda_rows,
                              .row_count = COUNT(cuda_rows),
                              .missing = (void *)no_such_cuda_function};
static struct library nvml = {.soname = "libnvidia-ml.so.1",
                              .prefix = "nvml",
                              .rows = nvml_rows,
                              .row_count = COUNT(nvml_rows),
                              .missing = (void *)no_such_nvml_function};

static bool is_caught(const struct row *row) {
  return row->hook != NULL && (!row->only_profiled || profile_is_wanted());
}

static void **slot(const struct row *row) {
  return (void **)((char *)&real + row->offset);
}

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
static void *route(const struct library *library, void *address) {
  if (!is_loaded(library))
    return address;
  for (size_t i = 0; i < library->row_count; i++)
    if (*slot(&library->rows[i]) == address && is_caught(&library->rows[i]))
      return library->rows[i].hook;
  return address;
}

/* Whose function a name would be. */
static struct library *library_of(const char *name) {
  if (name != NULL && text_begins_with(name, cuda.prefix))
    return &cuda;
  if (name != NULL && text_begins_with(name, nvml.prefix))
    return &nvml;
  return NULL;
}

static const struct row *caught_row(const struct library *library, const char *name) {
  for (size_t i = 0; library != NULL && i < library->row_count; i++)
    if (text_equals(library->rows[i].name, name) && is_caught(&library->rows[i]))
      return &library->rows[i];
  return NULL;
}

bool hooks_catches(const char *name) {
  struct library *library = library_of(name);
  if (caught_row(library, name) == NULL)
    return false;
  load(library, RTLD_NOLOAD);
  return true;
}

void *hooks_route(const char *name, void *address) {
  struct library *library = address != NULL ? library_of(name) : NULL;
  return library != NULL ? route(library, address) : address;
}

void *hooks_of(const char *name) {
  struct library *library = library_of(name);
  const struct row *row = caught_row(library, name);
  return row != NULL && is_loaded(library) && *slot(row) != library->missing ? row->hook : NULL;
}
