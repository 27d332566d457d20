/* cuGetProcAddress: the newest variant of a function that the caller's CUDA version knows. */
#include <string.h>

#include "driver.h"
#include "exports.h"

static const struct {
  const char *name;
  void *address;
  int since;
  bool per_thread;
} table[] = {
#define SHARED(name, symbol, since) {#name, (void *)symbol, since, false},
#define PER_THREAD(name, symbol, since) {#name, (void *)symbol, since, true},
    DRIVER_EXPORTS(SHARED, PER_THREAD)
#undef SHARED
#undef PER_THREAD
};

#define ALL_FLAGS (CU_GET_PROC_ADDRESS_LEGACY_STREAM | CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM)

static CUdriverProcAddressQueryResult find(const char *name, int version, bool per_thread, void **address) {
  CUdriverProcAddressQueryResult status = CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND;
  int best_since = 0;
  bool best_per_thread = false;
  for (size_t i = 0; i < sizeof table / sizeof *table; i++) {
    if (strcmp(table[i].name, name) != 0 || (table[i].per_thread && !per_thread))
      continue;
    if (table[i].since > version) {
      if (status != CU_GET_PROC_ADDRESS_SUCCESS)
        status = CU_GET_PROC_ADDRESS_VERSION_NOT_SUFFICIENT;
      continue;
    }
    /* Both variants of a function can be as old: then the per-thread one, which was asked for, wins. */
    if (table[i].since < best_since || (table[i].since == best_since && best_per_thread))
      continue;
    status = CU_GET_PROC_ADDRESS_SUCCESS;
    best_since = table[i].since;
    best_per_thread = table[i].per_thread;
    *address = table[i].address;
  }
  return status;
}

/* Works before cuInit. */
CUresult CUDAAPI cuGetProcAddress_v2(const char *name, void **address, int version, cuuint64_t flags,
                                     CUdriverProcAddressQueryResult *status) {
  int driver_version;
  FORWARD_IF_ERROR(cuDriverGetVersion(&driver_version));
  if (!name || !address || version > driver_version || (flags & ~(cuuint64_t)ALL_FLAGS))
    return CUDA_ERROR_INVALID_VALUE;
  *address = NULL;
  CUdriverProcAddressQueryResult found =
      find(name, version, (flags & CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM) != 0, address);
  if (status)
    *status = found;
  return found == CU_GET_PROC_ADDRESS_SUCCESS || status ? CUDA_SUCCESS : CUDA_ERROR_NOT_FOUND;
}

CUresult CUDAAPI cuGetProcAddress(const char *name, void **address, int version, cuuint64_t flags) {
  return cuGetProcAddress_v2(name, address, version, flags, NULL);
}
