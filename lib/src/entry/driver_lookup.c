/* The driver's own lookup. Whatever it answered, for whatever version and flags, is routed by address. */
#include "entry/routes.h"
#include "hook/hooks.h"

CUresult cuGetProcAddress(const char *symbol, void **function, int version, cuuint64_t flags) {
  hooks_load_cuda();
  CUresult result = real.cuGetProcAddress(symbol, function, version, flags);
  if (result == CUDA_SUCCESS && function != NULL)
    *function = routes_to(symbol, *function);
  return result;
}

CUresult cuGetProcAddress_v2(const char *symbol, void **function, int version, cuuint64_t flags,
                             CUdriverProcAddressQueryResult *status) {
  hooks_load_cuda();
  CUresult result = real.cuGetProcAddress_v2(symbol, function, version, flags, status);
  if (result == CUDA_SUCCESS && function != NULL)
    *function = routes_to(symbol, *function);
  return result;
}

HOOK CUresult entry_cuGetProcAddress(const char *symbol, void **function, int version, cuuint64_t flags) {
  return KEEPING_ERRNO(cuGetProcAddress(symbol, function, version, flags));
}

HOOK CUresult entry_cuGetProcAddress_v2(const char *symbol, void **function, int version, cuuint64_t flags,
                                        CUdriverProcAddressQueryResult *status) {
  return KEEPING_ERRNO(cuGetProcAddress_v2(symbol, function, version, flags, status));
}
