/* A library that wraps one of the driver's functions, as a profiler of allocations does. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stddef.h>

int cuMemAlloc_v2(void *pointer, size_t size);

int cuMemAlloc_v2(void *pointer, size_t size) {
  int (*next)(void *, size_t) = (int (*)(void *, size_t))dlsym(RTLD_NEXT, "cuMemAlloc_v2");
  return next == NULL ? -1 : next(pointer, size);
}
