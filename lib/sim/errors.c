/* Names and texts of the error codes. */
#include "driver.h"

#define ERROR_CODES(X)                                                                                                 \
  X(CUDA_SUCCESS, "no error")                                                                                          \
  X(CUDA_ERROR_INVALID_VALUE, "invalid argument")                                                                      \
  X(CUDA_ERROR_OUT_OF_MEMORY, "out of memory")                                                                         \
  X(CUDA_ERROR_NOT_INITIALIZED, "initialization error")                                                                \
  X(CUDA_ERROR_DEINITIALIZED, "driver shutting down")                                                                  \
  X(CUDA_ERROR_NO_DEVICE, "no CUDA-capable device is detected")                                                        \
  X(CUDA_ERROR_INVALID_DEVICE, "invalid device ordinal")                                                               \
  X(CUDA_ERROR_INVALID_IMAGE, "device kernel image is invalid")                                                        \
  X(CUDA_ERROR_INVALID_CONTEXT, "invalid device context")                                                              \
  X(CUDA_ERROR_MAP_FAILED, "mapping of buffer object failed")                                                          \
  X(CUDA_ERROR_UNMAP_FAILED, "unmapping of buffer object failed")                                                      \
  X(CUDA_ERROR_ALREADY_MAPPED, "resource already mapped")                                                              \
  X(CUDA_ERROR_NOT_MAPPED, "resource not mapped")                                                                      \
  X(CUDA_ERROR_UNSUPPORTED_LIMIT, "limit is not supported on this architecture")                                       \
  X(CUDA_ERROR_PEER_ACCESS_UNSUPPORTED, "peer access is not supported between these two devices")                      \
  X(CUDA_ERROR_UNSUPPORTED_EXEC_AFFINITY, "the execution affinity is not supported")                                   \
  X(CUDA_ERROR_FILE_NOT_FOUND, "file not found")                                                                       \
  X(CUDA_ERROR_OPERATING_SYSTEM, "OS call failed or operation not supported on this OS")                               \
  X(CUDA_ERROR_INVALID_HANDLE, "invalid resource handle")                                                              \
  X(CUDA_ERROR_ILLEGAL_STATE, "the operation cannot be performed in the present state")                                \
  X(CUDA_ERROR_NOT_FOUND, "named symbol not found")                                                                    \
  X(CUDA_ERROR_NOT_READY, "device not ready")                                                                          \
  X(CUDA_ERROR_ILLEGAL_ADDRESS, "an illegal memory access was encountered")                                            \
  X(CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES, "too many resources requested for launch")                                     \
  X(CUDA_ERROR_PRIMARY_CONTEXT_ACTIVE, "cannot set while device is active in this process")                            \
  X(CUDA_ERROR_CONTEXT_IS_DESTROYED, "context is destroyed")                                                           \
  X(CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED, "part or all of the requested memory range is already mapped")          \
  X(CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED, "pointer does not correspond to a registered memory region")                \
  X(CUDA_ERROR_LAUNCH_FAILED, "unspecified launch failure")                                                            \
  X(CUDA_ERROR_COOPERATIVE_LAUNCH_TOO_LARGE, "too many blocks in cooperative launch")                                  \
  X(CUDA_ERROR_NOT_PERMITTED, "operation not permitted")                                                               \
  X(CUDA_ERROR_NOT_SUPPORTED, "operation not supported")                                                               \
  X(CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED, "operation not permitted when stream is capturing")                         \
  X(CUDA_ERROR_STREAM_CAPTURE_INVALIDATED, "operation failed due to a previous error during capture")                  \
  X(CUDA_ERROR_STREAM_CAPTURE_MERGE, "operation would result in a merge of separate capture sequences")                \
  X(CUDA_ERROR_STREAM_CAPTURE_UNMATCHED, "capture was not ended in the same stream as it began")                       \
  X(CUDA_ERROR_STREAM_CAPTURE_UNJOINED, "capturing stream has unjoined work")                                          \
  X(CUDA_ERROR_STREAM_CAPTURE_ISOLATION, "dependency created on uncaptured work in another stream")                    \
  X(CUDA_ERROR_STREAM_CAPTURE_IMPLICIT, "operation would make the legacy stream depend on a capturing stream")         \
  X(CUDA_ERROR_CAPTURED_EVENT, "operation not permitted on an event last recorded in a capturing stream")              \
  X(CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD,                                                                            \
    "attempt to terminate a thread-local capture sequence from another thread")                                        \
  X(CUDA_ERROR_TIMEOUT, "wait operation timed out")                                                                    \
  X(CUDA_ERROR_GRAPH_EXEC_UPDATE_FAILURE, "the graph update was not performed because of a violated constraint")       \
  X(CUDA_ERROR_MPS_CONNECTION_FAILED, "MPS client failed to connect to the MPS control daemon or the MPS server")      \
  X(CUDA_ERROR_MPS_RPC_FAILURE, "the remote procedural call between the MPS server and the MPS client failed")         \
  X(CUDA_ERROR_UNKNOWN, "unknown error")

static const struct row {
  CUresult code;
  const char *name, *text;
} table[] = {
#define ROW(code, text) {code, #code, text},
    ERROR_CODES(ROW)
#undef ROW
};

static const struct row *find(CUresult code) {
  static const struct row none;
  for (size_t i = 0; i < sizeof table / sizeof *table; i++)
    if (table[i].code == code)
      return &table[i];
  return &none;
}

CUresult CUDAAPI cuGetErrorName(CUresult error, const char **name) {
  return name && (*name = find(error)->name) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

CUresult CUDAAPI cuGetErrorString(CUresult error, const char **text) {
  return text && (*text = find(error)->text) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}
