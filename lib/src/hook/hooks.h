/*
 * THE list of functions that the library catches, by exact ABI symbol, and of those that it only calls. From these
 * lists come the typed table of real functions, their lookup, the routing by address and the tests; the prototypes are
 * the header's own, so that a missing body is a link error, and a wrong prototype or a double row a compile error.
 */
#pragma once

#define __CUDA_API_VERSION_INTERNAL /* makes the old and the _ptsz prototypes visible */
#include <cuda.h>
#define NVML_NO_UNVERSIONED_FUNC_DEFS
#include <nvml.h>

#include "base/compiler.h"
#include "hook/profiled_hooks.h"

#include <errno.h>
#include <stdbool.h>

#if CUDA_VERSION < 13000
CUresult CUDAAPI cuCtxSynchronize_v2(CUcontext context); /* the runtime of CUDA 13 waits by it */
#endif
#if CUDA_VERSION < 13010
CUresult CUDAAPI cuMulticastBindMem_v2(CUmemGenericAllocationHandle object, CUdevice device, size_t offset,
                                       CUmemGenericAllocationHandle memory, size_t memory_offset, size_t size,
                                       unsigned long long flags);
CUresult CUDAAPI cuMulticastBindAddr_v2(CUmemGenericAllocationHandle object, CUdevice device, size_t offset,
                                        CUdeviceptr address, size_t size, unsigned long long flags);
#endif

/* X(symbol): caught, and never recorded. */
#define CUDA_LOOKUP(X)                                                                                                 \
  X(cuGetProcAddress)                                                                                                  \
  X(cuGetProcAddress_v2)

/* X(symbol): caught. Each has a body of the same name in a file of cuda/, and a row in cuda/entries.c;
 * launches of kernels have both in one (cuda/launch.c). */
#define CUDA_CAUGHT(X)                                                                                                 \
  /* memory */                                                                                                         \
  X(cuMemAlloc)                                                                                                        \
  X(cuMemAlloc_v2)                                                                                                     \
  X(cuMemAllocPitch)                                                                                                   \
  X(cuMemAllocPitch_v2)                                                                                                \
  X(cuMemAllocManaged)                                                                                                 \
  X(cuMemFree)                                                                                                         \
  X(cuMemFree_v2)                                                                                                      \
  X(cuMemGetInfo)                                                                                                      \
  X(cuMemGetInfo_v2)                                                                                                   \
  X(cuDeviceTotalMem)                                                                                                  \
  X(cuDeviceTotalMem_v2)                                                                                               \
  /* memory pools */                                                                                                   \
  X(cuMemAllocAsync)                                                                                                   \
  X(cuMemAllocAsync_ptsz)                                                                                              \
  X(cuMemAllocFromPoolAsync)                                                                                           \
  X(cuMemAllocFromPoolAsync_ptsz)                                                                                      \
  X(cuMemFreeAsync)                                                                                                    \
  X(cuMemFreeAsync_ptsz)                                                                                               \
  X(cuMemPoolCreate)                                                                                                   \
  X(cuMemPoolTrimTo)                                                                                                   \
  X(cuMemPoolDestroy)                                                                                                  \
  /* virtual memory management */                                                                                      \
  X(cuMemCreate)                                                                                                       \
  X(cuMemRelease)                                                                                                      \
  X(cuMemRetainAllocationHandle)                                                                                       \
  X(cuMemMap)                                                                                                          \
  X(cuMemUnmap)                                                                                                        \
  X(cuMemExportToShareableHandle)                                                                                      \
  X(cuMemImportFromShareableHandle)                                                                                    \
  X(cuMulticastBindMem)                                                                                                \
  X(cuMulticastBindMem_v2)                                                                                             \
  X(cuMulticastBindAddr)                                                                                               \
  X(cuMulticastBindAddr_v2)                                                                                            \
  X(cuIpcGetMemHandle)                                                                                                 \
  X(cuIpcOpenMemHandle)                                                                                                \
  X(cuIpcOpenMemHandle_v2)                                                                                             \
  /* arrays and contexts */                                                                                            \
  X(cuArrayCreate)                                                                                                     \
  X(cuArrayCreate_v2)                                                                                                  \
  X(cuArray3DCreate)                                                                                                   \
  X(cuArray3DCreate_v2)                                                                                                \
  X(cuArrayDestroy)                                                                                                    \
  X(cuMipmappedArrayCreate)                                                                                            \
  X(cuMipmappedArrayDestroy)                                                                                           \
  X(cuCtxCreate)                                                                                                       \
  X(cuCtxCreate_v2)                                                                                                    \
  X(cuCtxCreate_v3)                                                                                                    \
  X(cuCtxCreate_v4)                                                                                                    \
  X(cuDevicePrimaryCtxRetain)                                                                                          \
  /* modules, and what contexts take later */                                                                          \
  X(cuModuleLoad)                                                                                                      \
  X(cuModuleLoadData)                                                                                                  \
  X(cuModuleLoadDataEx)                                                                                                \
  X(cuModuleLoadFatBinary)                                                                                             \
  X(cuModuleUnload)                                                                                                    \
  X(cuLibraryLoadData)                                                                                                 \
  X(cuLibraryLoadFromFile)                                                                                             \
  X(cuLibraryUnload)                                                                                                   \
  X(cuCtxSetLimit)                                                                                                     \
  X(cuStreamCreate)                                                                                                    \
  X(cuStreamCreateWithPriority)                                                                                        \
  X(cuGreenCtxStreamCreate)                                                                                            \
  X(cuGreenCtxCreate)                                                                                                  \
  X(cuGreenCtxDestroy)                                                                                                 \
  X(cuInit)                                                                                                            \
  /* memory of graphs */                                                                                               \
  X(cuGraphInstantiate)                                                                                                \
  X(cuGraphInstantiate_v2)                                                                                             \
  X(cuGraphInstantiateWithFlags)                                                                                       \
  X(cuGraphInstantiateWithParams)                                                                                      \
  X(cuGraphInstantiateWithParams_ptsz)                                                                                 \
  X(cuGraphExecDestroy)                                                                                                \
  X(cuGraphExecUpdate)                                                                                                 \
  X(cuGraphExecUpdate_v2)                                                                                              \
  X(cuGraphUpload)                                                                                                     \
  X(cuGraphUpload_ptsz)                                                                                                \
  X(cuDeviceGraphMemTrim)                                                                                              \
  /* launches */                                                                                                       \
  X(cuLaunchKernel)                                                                                                    \
  X(cuLaunchKernel_ptsz)                                                                                               \
  X(cuLaunchKernelEx)                                                                                                  \
  X(cuLaunchKernelEx_ptsz)                                                                                             \
  X(cuLaunchCooperativeKernel)                                                                                         \
  X(cuLaunchCooperativeKernel_ptsz)                                                                                    \
  X(cuGraphLaunch)                                                                                                     \
  X(cuGraphLaunch_ptsz)                                                                                                \
  /* ends of waits and of measurements */                                                                              \
  X(cuCtxSynchronize)                                                                                                  \
  X(cuCtxSynchronize_v2)                                                                                               \
  X(cuStreamSynchronize)                                                                                               \
  X(cuStreamSynchronize_ptsz)                                                                                          \
  X(cuEventSynchronize)                                                                                                \
  X(cuStreamQuery)                                                                                                     \
  X(cuStreamQuery_ptsz)                                                                                                \
  X(cuEventQuery)                                                                                                      \
  X(cuMemcpyDtoH_v2)                                                                                                   \
  X(cuMemcpyDtoH_v2_ptds)                                                                                              \
  X(cuStreamDestroy)                                                                                                   \
  X(cuStreamDestroy_v2)                                                                                                \
  X(cuCtxDestroy)                                                                                                      \
  X(cuCtxDestroy_v2)                                                                                                   \
  X(cuDevicePrimaryCtxRelease)                                                                                         \
  X(cuDevicePrimaryCtxRelease_v2)                                                                                      \
  X(cuDevicePrimaryCtxReset)                                                                                           \
  X(cuDevicePrimaryCtxReset_v2)

/* X(symbol): of those, besides launches, what programs call all the time. */
#define CUDA_HOT(X)                                                                                                    \
  X(cuMemAllocAsync)                                                                                                   \
  X(cuMemAllocAsync_ptsz)                                                                                              \
  X(cuMemAllocFromPoolAsync)                                                                                           \
  X(cuMemAllocFromPoolAsync_ptsz)                                                                                      \
  X(cuMemFreeAsync)                                                                                                    \
  X(cuMemFreeAsync_ptsz)

/* X(symbol): called by the library, not caught. */
#define CUDA_USED(X)                                                                                                   \
  X(cuCtxGetCurrent)                                                                                                   \
  X(cuCtxGetDevice)                                                                                                    \
  X(cuCtxGetLimit)                                                                                                     \
  X(cuDeviceGetAttribute)                                                                                              \
  X(cuDeviceGetGraphMemAttribute)                                                                                      \
  X(cuDeviceGetUuid)                                                                                                   \
  X(cuDeviceGetUuid_v2)                                                                                                \
  X(cuDeviceGetMemPool)                                                                                                \
  X(cuDevicePrimaryCtxGetState)                                                                                        \
  X(cuEventElapsedTime)                                                                                                \
  X(cuFuncGetName)                                                                                                     \
  X(cuGraphChildGraphNodeGetGraph)                                                                                     \
  X(cuGraphGetNodes)                                                                                                   \
  X(cuGraphMemAllocNodeGetParams)                                                                                      \
  X(cuGraphMemFreeNodeGetParams)                                                                                       \
  X(cuGraphNodeGetType)                                                                                                \
  X(cuCtxFromGreenCtx)                                                                                                 \
  X(cuKernelGetName)                                                                                                   \
  X(cuMemAdvise_v2)                                                                                                    \
  X(cuMemPoolGetAttribute)                                                                                             \
  X(cuOccupancyMaxActiveBlocksPerMultiprocessor)                                                                       \
  X(cuStreamGetCtx)                                                                                                    \
  X(cuStreamIsCapturing)                                                                                               \
  X(cuThreadExchangeStreamCaptureMode)

/* X(symbol): caught. Each has a body in a file of nvml/, and a row in nvml/view.c. */
#define NVML_CAUGHT(X)                                                                                                 \
  X(nvmlDeviceGetMemoryInfo)                                                                                           \
  X(nvmlDeviceGetMemoryInfo_v2)                                                                                        \
  X(nvmlDeviceGetComputeRunningProcesses)                                                                              \
  X(nvmlDeviceGetComputeRunningProcesses_v2)                                                                           \
  X(nvmlDeviceGetComputeRunningProcesses_v3)                                                                           \
  X(nvmlDeviceGetGraphicsRunningProcesses)                                                                             \
  X(nvmlDeviceGetGraphicsRunningProcesses_v2)                                                                          \
  X(nvmlDeviceGetGraphicsRunningProcesses_v3)                                                                          \
  X(nvmlDeviceGetMPSComputeRunningProcesses)                                                                           \
  X(nvmlDeviceGetMPSComputeRunningProcesses_v2)                                                                        \
  X(nvmlDeviceGetMPSComputeRunningProcesses_v3)                                                                        \
  X(nvmlDeviceGetRunningProcessDetailList)                                                                             \
  X(nvmlDeviceGetAccountingPids)                                                                                       \
  X(nvmlDeviceGetAccountingStats)                                                                                      \
  X(nvmlDeviceGetUtilizationRates)                                                                                     \
  X(nvmlDeviceGetProcessUtilization)                                                                                   \
  X(nvmlDeviceGetProcessesUtilizationInfo)                                                                             \
  X(nvmlDeviceGetSamples)

#define NVML_USED(X)                                                                                                   \
  X(nvmlInit_v2)                                                                                                       \
  X(nvmlDeviceGetCount_v2)                                                                                             \
  X(nvmlDeviceGetHandleByIndex_v2)                                                                                     \
  X(nvmlDeviceGetIndex)                                                                                                \
  X(nvmlDeviceGetHandleByUUID)                                                                                         \
  X(nvmlDeviceGetMigMode)                                                                                              \
  X(nvmlDeviceGetUUID)

/* The real functions. One that this driver does not have answers "not found", as the driver would. */
struct real_functions {
#define X(f) __typeof__(f) *f;
  CUDA_LOOKUP(X)
  CUDA_CAUGHT(X)
  CUDA_PROFILED(X)
  CUDA_USED(X)
  NVML_CAUGHT(X)
  NVML_USED(X)
#undef X
};
extern struct real_functions real;

/* A program enters a function at its entry_ (cuda/entries.h, nvml/view.c), which has the function's symbol. The
 * body behind that has the function's own name in C. */
#define X(f)                                                                                                           \
  extern __typeof__(f) f __asm__("body_" #f);                                                                          \
  extern __typeof__(f) entry_##f __asm__(#f);
CUDA_LOOKUP(X)
CUDA_CAUGHT(X)
NVML_CAUGHT(X)
#undef X
#define X(f) extern __typeof__(f) entry_##f __asm__(#f);
CUDA_PROFILED(X)
#undef X
#define X(f) extern HOT __typeof__(f) f, entry_##f;
CUDA_HOT(X)
#undef X

/* Fills the table of real functions from the libcuda that the program has loaded; false while it has none. */
bool hooks_load_cuda(void);

/* The handle by which that is looked up; NULL while there is none. */
void *hooks_cuda_handle(void);

/* Loads the real NVML unless it is there; false without one. */
bool hooks_load_nvml(void);

/* Loads the real NVML only where the program has loaded it already. */
void hooks_load_nvml_if_there(void);

bool hooks_cuda_is_loaded(void);
bool hooks_nvml_is_loaded(void);

/* Does this stand in the table for a function that the driver does not have? */
bool hooks_is_missing(const void *function);

/* For entries: the result of the call, after which errno is the program's again. */
#define KEEPING_ERRNO(call)                                                                                            \
  ({                                                                                                                   \
    int kept_errno = errno;                                                                                            \
    __typeof__(call) kept_result = (call);                                                                             \
    errno = kept_errno;                                                                                                \
    kept_result;                                                                                                       \
  })

/* Begins the definition of what is exported. */
#define HOOK __attribute__((visibility("default")))
