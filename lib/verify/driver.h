/*
 * The driver and NVML as a program finds them that knows nothing of vgpurun: by dlopen and dlsym. The machine's
 * driver does not have stays NULL.
 */
#pragma once

#define __CUDA_API_VERSION_INTERNAL /* makes the exact prototypes visible */
#include <cuda.h>
#define NVML_NO_UNVERSIONED_FUNC_DEFS
#include <nvml.h>

#define DRIVER_FUNCTIONS(X)                                                                                            \
  X(cuInit)                                                                                                            \
  X(cuDeviceGet)                                                                                                       \
  X(cuDeviceGetAttribute)                                                                                              \
  X(cuDeviceGetUuid)                                                                                                   \
  X(cuDeviceTotalMem_v2)                                                                                               \
  X(cuDevicePrimaryCtxRetain)                                                                                          \
  X(cuCtxSetCurrent)                                                                                                   \
  X(cuCtxCreate_v2)                                                                                                    \
  X(cuCtxDestroy_v2)                                                                                                   \
  X(cuCtxSynchronize)                                                                                                  \
  X(cuGetProcAddress)                                                                                                  \
  X(cuMemGetInfo_v2)                                                                                                   \
  X(cuMemAlloc_v2)                                                                                                     \
  X(cuMemAllocPitch_v2)                                                                                                \
  X(cuMemAllocManaged)                                                                                                 \
  X(cuMemAllocAsync)                                                                                                   \
  X(cuMemAllocFromPoolAsync)                                                                                           \
  X(cuMemFree_v2)                                                                                                      \
  X(cuMemFreeAsync)                                                                                                    \
  X(cuMemPoolCreate)                                                                                                   \
  X(cuMemCreate)                                                                                                       \
  X(cuMemRelease)                                                                                                      \
  X(cuArrayCreate_v2)                                                                                                  \
  X(cuArray3DCreate_v2)                                                                                                \
  X(cuArrayDestroy)                                                                                                    \
  X(cuMipmappedArrayCreate)                                                                                            \
  X(cuMipmappedArrayDestroy)                                                                                           \
  X(cuModuleLoadData)                                                                                                  \
  X(cuModuleGetFunction)                                                                                               \
  X(cuStreamCreate)                                                                                                    \
  X(cuStreamSynchronize)                                                                                               \
  X(cuStreamBeginCapture_v2)                                                                                           \
  X(cuStreamEndCapture)                                                                                                \
  X(cuEventCreate)                                                                                                     \
  X(cuEventRecord)                                                                                                     \
  X(cuEventSynchronize)                                                                                                \
  X(cuLaunchKernel)                                                                                                    \
  X(cuGraphCreate)                                                                                                     \
  X(cuGraphAddMemAllocNode)                                                                                            \
  X(cuGraphInstantiateWithFlags)                                                                                       \
  X(cuGraphLaunch)

#define NVML_FUNCTIONS(X)                                                                                              \
  X(nvmlInit_v2)                                                                                                       \
  X(nvmlDeviceGetHandleByUUID)                                                                                         \
  X(nvmlDeviceGetMemoryInfo)

struct driver {
#define X(f) __typeof__(f) *f;
  DRIVER_FUNCTIONS(X)
  NVML_FUNCTIONS(X)
#undef X
};
extern struct driver driver;

/* Ends the program, with one line of JSON, for what must work on any machine. */
void must(CUresult result, const char *what);

/* Loads the driver, and makes the first device's primary context current. */
void driver_start(void);

/* The same where it may be refused. */
CUresult driver_try_start(void);

/* The size of the first device in bytes as NVML tells it; 0 where NVML does not answer. */
unsigned long long nvml_total_bytes(void);
