/* The driver's checkpoint interface, which headers before CUDA 12.8 lack. */
#pragma once

#include "cuda_api.h"

#if CUDA_VERSION < 12080
typedef enum {
  CU_PROCESS_STATE_RUNNING,
  CU_PROCESS_STATE_LOCKED,
  CU_PROCESS_STATE_CHECKPOINTED,
  CU_PROCESS_STATE_FAILED,
} CUprocessState;

typedef struct {
  unsigned int timeoutMs, reserved0;
  cuuint64_t reserved1[7];
} CUcheckpointLockArgs;

typedef struct {
  cuuint64_t reserved[8];
} CUcheckpointCheckpointArgs;

typedef struct {
  CUuuid oldUuid, newUuid;
} CUcheckpointGpuPair;

typedef struct {
  CUcheckpointGpuPair *gpuPairs;
  unsigned int gpuPairsCount;
  char reserved[44];
  cuuint64_t reserved1;
} CUcheckpointRestoreArgs;

typedef struct {
  cuuint64_t reserved[8];
} CUcheckpointUnlockArgs;

CUresult CUDAAPI cuCheckpointProcessGetRestoreThreadId(int pid, int *tid);
CUresult CUDAAPI cuCheckpointProcessGetState(int pid, CUprocessState *state);
CUresult CUDAAPI cuCheckpointProcessLock(int pid, CUcheckpointLockArgs *args);
CUresult CUDAAPI cuCheckpointProcessCheckpoint(int pid, CUcheckpointCheckpointArgs *args);
CUresult CUDAAPI cuCheckpointProcessRestore(int pid, CUcheckpointRestoreArgs *args);
CUresult CUDAAPI cuCheckpointProcessUnlock(int pid, CUcheckpointUnlockArgs *args);
#endif
