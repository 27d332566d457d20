/* Green contexts are not simulated: none can be made. */
#include "driver.h"

static CUresult answer(CUresult otherwise) {
  CUresult result = driver_check_ready();
  return result != CUDA_SUCCESS ? result : otherwise;
}

CUresult CUDAAPI cuGreenCtxCreate(CUgreenCtx *context, CUdevResourceDesc description, CUdevice ordinal,
                                  unsigned int flags) {
  (void)context, (void)description, (void)ordinal, (void)flags;
  return answer(CUDA_ERROR_NOT_SUPPORTED);
}

CUresult CUDAAPI cuGreenCtxDestroy(CUgreenCtx context) {
  (void)context;
  return answer(CUDA_ERROR_INVALID_CONTEXT);
}

CUresult CUDAAPI cuGreenCtxStreamCreate(CUstream *stream, CUgreenCtx context, unsigned int flags, int priority) {
  (void)stream, (void)context, (void)flags, (void)priority;
  return answer(CUDA_ERROR_INVALID_CONTEXT);
}
