/* The functions that are caught. */
#include "cuda/entries.h"

#define X(f) static HOT __typeof__(f) looked_at_##f, recorded_##f;
CUDA_HOT(X)
#undef X

/* memory */
ENTRY_2(BODY, cuMemAlloc, CUdeviceptr_v1 *, unsigned, BYTES(b))
ENTRY_2(BODY, cuMemAlloc_v2, CUdeviceptr *, size_t, BYTES(b))
ENTRY_5(BODY, cuMemAllocPitch, CUdeviceptr_v1 *, unsigned *, unsigned, unsigned, unsigned, BYTES((uint64_t)c *d))
ENTRY_5(BODY, cuMemAllocPitch_v2, CUdeviceptr *, size_t *, size_t, size_t, unsigned, BYTES((uint64_t)c *d))
ENTRY_3(BODY, cuMemAllocManaged, CUdeviceptr *, size_t, unsigned, BYTES(b))
ENTRY_1(BODY, cuMemFree, CUdeviceptr_v1)
ENTRY_1(BODY, cuMemFree_v2, CUdeviceptr)
ENTRY_2(BODY, cuMemGetInfo, unsigned *, unsigned *)
ENTRY_2(BODY, cuMemGetInfo_v2, size_t *, size_t *)
ENTRY_2(BODY, cuDeviceTotalMem, unsigned *, CUdevice)
ENTRY_2(BODY, cuDeviceTotalMem_v2, size_t *, CUdevice)

/* memory pools */
ENTRY_3(BODY, cuMemAllocAsync, CUdeviceptr *, size_t, CUstream, BYTES(b), STREAM(c))
ENTRY_3(BODY, cuMemAllocAsync_ptsz, CUdeviceptr *, size_t, CUstream, BYTES(b), STREAM_PER_THREAD(c))
ENTRY_4(BODY, cuMemAllocFromPoolAsync, CUdeviceptr *, size_t, CUmemoryPool, CUstream, BYTES(b), STREAM(d))
ENTRY_4(BODY, cuMemAllocFromPoolAsync_ptsz, CUdeviceptr *, size_t, CUmemoryPool, CUstream, BYTES(b),
        STREAM_PER_THREAD(d))
ENTRY_2(BODY, cuMemFreeAsync, CUdeviceptr, CUstream, STREAM(b))
ENTRY_2(BODY, cuMemFreeAsync_ptsz, CUdeviceptr, CUstream, STREAM_PER_THREAD(b))
ENTRY_2(BODY, cuMemPoolCreate, CUmemoryPool *, const CUmemPoolProps *)
ENTRY_2(BODY, cuMemPoolTrimTo, CUmemoryPool, size_t)
ENTRY_1(BODY, cuMemPoolDestroy, CUmemoryPool)

/* virtual memory management */
ENTRY_4(BODY, cuMemCreate, CUmemGenericAllocationHandle *, size_t, const CUmemAllocationProp *, unsigned long long,
        BYTES(b))
ENTRY_1(BODY, cuMemRelease, CUmemGenericAllocationHandle)
ENTRY_2(BODY, cuMemRetainAllocationHandle, CUmemGenericAllocationHandle *, void *)
ENTRY_5(BODY, cuMemMap, CUdeviceptr, size_t, size_t, CUmemGenericAllocationHandle, unsigned long long, BYTES(b))
ENTRY_2(BODY, cuMemUnmap, CUdeviceptr, size_t, BYTES(b))
ENTRY_4(BODY, cuMemExportToShareableHandle, void *, CUmemGenericAllocationHandle, CUmemAllocationHandleType,
        unsigned long long)
ENTRY_3(BODY, cuMemImportFromShareableHandle, CUmemGenericAllocationHandle *, void *, CUmemAllocationHandleType)
ENTRY_6(BODY, cuMulticastBindMem, CUmemGenericAllocationHandle, size_t, CUmemGenericAllocationHandle, size_t, size_t,
        unsigned long long)
ENTRY_7(BODY, cuMulticastBindMem_v2, CUmemGenericAllocationHandle, CUdevice, size_t, CUmemGenericAllocationHandle,
        size_t, size_t, unsigned long long)
ENTRY_5(BODY, cuMulticastBindAddr, CUmemGenericAllocationHandle, size_t, CUdeviceptr, size_t, unsigned long long)
ENTRY_6(BODY, cuMulticastBindAddr_v2, CUmemGenericAllocationHandle, CUdevice, size_t, CUdeviceptr, size_t,
        unsigned long long)
ENTRY_2(BODY, cuIpcGetMemHandle, CUipcMemHandle *, CUdeviceptr)
ENTRY_3(BODY, cuIpcOpenMemHandle, CUdeviceptr *, CUipcMemHandle, unsigned int)
ENTRY_3(BODY, cuIpcOpenMemHandle_v2, CUdeviceptr *, CUipcMemHandle, unsigned int)

/* arrays and contexts */
ENTRY_2(BODY, cuArrayCreate, CUarray *, const CUDA_ARRAY_DESCRIPTOR_v1 *)
ENTRY_2(BODY, cuArrayCreate_v2, CUarray *, const CUDA_ARRAY_DESCRIPTOR *)
ENTRY_2(BODY, cuArray3DCreate, CUarray *, const CUDA_ARRAY3D_DESCRIPTOR_v1 *)
ENTRY_2(BODY, cuArray3DCreate_v2, CUarray *, const CUDA_ARRAY3D_DESCRIPTOR *)
ENTRY_1(BODY, cuArrayDestroy, CUarray)
ENTRY_3(BODY, cuMipmappedArrayCreate, CUmipmappedArray *, const CUDA_ARRAY3D_DESCRIPTOR *, unsigned)
ENTRY_1(BODY, cuMipmappedArrayDestroy, CUmipmappedArray)
ENTRY_3(BODY, cuCtxCreate, CUcontext *, unsigned, CUdevice, CHANGES_CONTEXT)
ENTRY_3(BODY, cuCtxCreate_v2, CUcontext *, unsigned, CUdevice, CHANGES_CONTEXT)
ENTRY_5(BODY, cuCtxCreate_v3, CUcontext *, CUexecAffinityParam *, int, unsigned, CUdevice, CHANGES_CONTEXT)
ENTRY_4(BODY, cuCtxCreate_v4, CUcontext *, CUctxCreateParams *, unsigned, CUdevice, CHANGES_CONTEXT)
ENTRY_2(BODY, cuDevicePrimaryCtxRetain, CUcontext *, CUdevice)

/* modules, and what contexts take later */
ENTRY_2(BODY, cuModuleLoad, CUmodule *, const char *)
ENTRY_2(BODY, cuModuleLoadData, CUmodule *, const void *)
ENTRY_5(BODY, cuModuleLoadDataEx, CUmodule *, const void *, unsigned, CUjit_option *, void **)
ENTRY_2(BODY, cuModuleLoadFatBinary, CUmodule *, const void *)
ENTRY_1(BODY, cuModuleUnload, CUmodule, ENDS_KERNELS)
ENTRY_8(BODY, cuLibraryLoadData, CUlibrary *, const void *, CUjit_option *, void **, unsigned, CUlibraryOption *,
        void **, unsigned)
ENTRY_8(BODY, cuLibraryLoadFromFile, CUlibrary *, const char *, CUjit_option *, void **, unsigned, CUlibraryOption *,
        void **, unsigned)
ENTRY_1(BODY, cuLibraryUnload, CUlibrary, ENDS_KERNELS)
ENTRY_2(BODY, cuCtxSetLimit, CUlimit, size_t)
ENTRY_2(BODY, cuStreamCreate, CUstream *, unsigned)
ENTRY_3(BODY, cuStreamCreateWithPriority, CUstream *, unsigned, int)
ENTRY_4(BODY, cuGreenCtxStreamCreate, CUstream *, CUgreenCtx, unsigned, int)
ENTRY_4(BODY, cuGreenCtxCreate, CUgreenCtx *, CUdevResourceDesc, CUdevice, unsigned)
ENTRY_1(BODY, cuGreenCtxDestroy, CUgreenCtx, CHANGES_CONTEXT)
ENTRY_1(BODY, cuInit, unsigned)

/* memory of graphs */
ENTRY_5(BODY, cuGraphInstantiate, CUgraphExec *, CUgraph, CUgraphNode *, char *, size_t)
ENTRY_5(BODY, cuGraphInstantiate_v2, CUgraphExec *, CUgraph, CUgraphNode *, char *, size_t)
ENTRY_3(BODY, cuGraphInstantiateWithFlags, CUgraphExec *, CUgraph, unsigned long long)
ENTRY_3(BODY, cuGraphInstantiateWithParams, CUgraphExec *, CUgraph, CUDA_GRAPH_INSTANTIATE_PARAMS *)
ENTRY_3(BODY, cuGraphInstantiateWithParams_ptsz, CUgraphExec *, CUgraph, CUDA_GRAPH_INSTANTIATE_PARAMS *)
ENTRY_1(BODY, cuGraphExecDestroy, CUgraphExec)
ENTRY_4(BODY, cuGraphExecUpdate, CUgraphExec, CUgraph, CUgraphNode *, CUgraphExecUpdateResult *)
ENTRY_3(BODY, cuGraphExecUpdate_v2, CUgraphExec, CUgraph, CUgraphExecUpdateResultInfo *)
ENTRY_2(BODY, cuGraphUpload, CUgraphExec, CUstream, STREAM(b))
ENTRY_2(BODY, cuGraphUpload_ptsz, CUgraphExec, CUstream, STREAM_PER_THREAD(b))
ENTRY_1(BODY, cuDeviceGraphMemTrim, CUdevice)

/* launches; those of a kernel are in cuda/launch.c */
ENTRY_2(BODY, cuGraphLaunch, CUgraphExec, CUstream, LAUNCHES_ON(legacy(b)))
ENTRY_2(BODY, cuGraphLaunch_ptsz, CUgraphExec, CUstream, LAUNCHES_ON(per_thread(b)))

/* ends of waits and of measurements */
ENTRY_0(BODY, cuCtxSynchronize, WAITS)
ENTRY_1(BODY, cuCtxSynchronize_v2, CUcontext, WAITS)
ENTRY_1(BODY, cuStreamSynchronize, CUstream, STREAM(a), WAITS)
ENTRY_1(BODY, cuStreamSynchronize_ptsz, CUstream, STREAM_PER_THREAD(a), WAITS)
ENTRY_1(BODY, cuEventSynchronize, CUevent, WAITS)
ENTRY_1(BODY, cuStreamQuery, CUstream, STREAM(a))
ENTRY_1(BODY, cuStreamQuery_ptsz, CUstream, STREAM_PER_THREAD(a))
ENTRY_1(BODY, cuEventQuery, CUevent)
ENTRY_3(BODY, cuMemcpyDtoH_v2, void *, CUdeviceptr, size_t, COPY(DEVICE_TO_HOST, c), WAITS)
ENTRY_3(BODY, cuMemcpyDtoH_v2_ptds, void *, CUdeviceptr, size_t, COPY(DEVICE_TO_HOST, c), WAITS)
ENTRY_1(BODY, cuStreamDestroy, CUstream, ENDS_STREAM(a))
ENTRY_1(BODY, cuStreamDestroy_v2, CUstream, ENDS_STREAM(a))
ENTRY_1(BODY, cuCtxDestroy, CUcontext, CHANGES_CONTEXT)
ENTRY_1(BODY, cuCtxDestroy_v2, CUcontext, CHANGES_CONTEXT)
ENTRY_1(BODY, cuDevicePrimaryCtxRelease, CUdevice, CHANGES_CONTEXT)
ENTRY_1(BODY, cuDevicePrimaryCtxRelease_v2, CUdevice, CHANGES_CONTEXT)
ENTRY_1(BODY, cuDevicePrimaryCtxReset, CUdevice, CHANGES_CONTEXT)
ENTRY_1(BODY, cuDevicePrimaryCtxReset_v2, CUdevice, CHANGES_CONTEXT)
