/* The functions that are only recorded: copies and fills, events and streams. Nobody is held back here. */
#include "cuda/entries.h"

/* Returns the direction of a copy with a descriptor. With unified addresses the driver alone knows it. */
static uint8_t direction(CUmemorytype from, CUmemorytype to) {
  bool from_host = from == CU_MEMORYTYPE_HOST, to_host = to == CU_MEMORYTYPE_HOST;
  if (from == CU_MEMORYTYPE_UNIFIED || to == CU_MEMORYTYPE_UNIFIED)
    return PROFILE_BY_POINTERS;
  if (from_host)
    return to_host ? PROFILE_HOST_TO_HOST : PROFILE_HOST_TO_DEVICE;
  return to_host ? PROFILE_DEVICE_TO_HOST : PROFILE_DEVICE_TO_DEVICE;
}

/* Descriptors of all versions have fields of the same names. */
#define DIRECTION(d) .copy = (d) != NULL ? direction((d)->srcMemoryType, (d)->dstMemoryType) : PROFILE_NO_COPY
#define PLANE(d) .bytes = (d) != NULL ? (uint64_t)(d)->WidthInBytes * (d)->Height : 0, DIRECTION(d)
#define SPACE(d) .bytes = (d) != NULL ? (uint64_t)(d)->WidthInBytes * (d)->Height * (d)->Depth : 0, DIRECTION(d)

/* copies */
ENTRY_3(DRIVER, cuMemcpy, CUdeviceptr, CUdeviceptr, size_t, COPY(BY_POINTERS, c))
ENTRY_3(DRIVER, cuMemcpy_ptds, CUdeviceptr, CUdeviceptr, size_t, COPY(BY_POINTERS, c))
ENTRY_1(DRIVER, cuMemcpy2D, const CUDA_MEMCPY2D_v1 *, PLANE(a))
ENTRY_1(DRIVER, cuMemcpy2D_v2, const CUDA_MEMCPY2D *, PLANE(a))
ENTRY_1(DRIVER, cuMemcpy2D_v2_ptds, const CUDA_MEMCPY2D *, PLANE(a))
ENTRY_2(DRIVER, cuMemcpy2DAsync, const CUDA_MEMCPY2D_v1 *, CUstream, PLANE(a), STREAM(b))
ENTRY_2(DRIVER, cuMemcpy2DAsync_v2, const CUDA_MEMCPY2D *, CUstream, PLANE(a), STREAM(b))
ENTRY_2(DRIVER, cuMemcpy2DAsync_v2_ptsz, const CUDA_MEMCPY2D *, CUstream, PLANE(a), STREAM_PER_THREAD(b))
ENTRY_1(DRIVER, cuMemcpy2DUnaligned, const CUDA_MEMCPY2D_v1 *, PLANE(a))
ENTRY_1(DRIVER, cuMemcpy2DUnaligned_v2, const CUDA_MEMCPY2D *, PLANE(a))
ENTRY_1(DRIVER, cuMemcpy2DUnaligned_v2_ptds, const CUDA_MEMCPY2D *, PLANE(a))
ENTRY_1(DRIVER, cuMemcpy3D, const CUDA_MEMCPY3D_v1 *, SPACE(a))
ENTRY_1(DRIVER, cuMemcpy3D_v2, const CUDA_MEMCPY3D *, SPACE(a))
ENTRY_1(DRIVER, cuMemcpy3D_v2_ptds, const CUDA_MEMCPY3D *, SPACE(a))
ENTRY_2(DRIVER, cuMemcpy3DAsync, const CUDA_MEMCPY3D_v1 *, CUstream, SPACE(a), STREAM(b))
ENTRY_2(DRIVER, cuMemcpy3DAsync_v2, const CUDA_MEMCPY3D *, CUstream, SPACE(a), STREAM(b))
ENTRY_2(DRIVER, cuMemcpy3DAsync_v2_ptsz, const CUDA_MEMCPY3D *, CUstream, SPACE(a), STREAM_PER_THREAD(b))
ENTRY_1(DRIVER, cuMemcpy3DPeer, const CUDA_MEMCPY3D_PEER *, SPACE(a))
ENTRY_1(DRIVER, cuMemcpy3DPeer_ptds, const CUDA_MEMCPY3D_PEER *, SPACE(a))
ENTRY_2(DRIVER, cuMemcpy3DPeerAsync, const CUDA_MEMCPY3D_PEER *, CUstream, SPACE(a), STREAM(b))
ENTRY_2(DRIVER, cuMemcpy3DPeerAsync_ptsz, const CUDA_MEMCPY3D_PEER *, CUstream, SPACE(a), STREAM_PER_THREAD(b))
ENTRY_4(DRIVER, cuMemcpyAsync, CUdeviceptr, CUdeviceptr, size_t, CUstream, COPY(BY_POINTERS, c), STREAM(d))
ENTRY_4(DRIVER, cuMemcpyAsync_ptsz, CUdeviceptr, CUdeviceptr, size_t, CUstream, COPY(BY_POINTERS, c),
        STREAM_PER_THREAD(d))
ENTRY_5(DRIVER, cuMemcpyAtoA, CUarray, unsigned, CUarray, unsigned, unsigned, COPY(DEVICE_TO_DEVICE, e))
ENTRY_5(DRIVER, cuMemcpyAtoA_v2, CUarray, size_t, CUarray, size_t, size_t, COPY(DEVICE_TO_DEVICE, e))
ENTRY_5(DRIVER, cuMemcpyAtoA_v2_ptds, CUarray, size_t, CUarray, size_t, size_t, COPY(DEVICE_TO_DEVICE, e))
ENTRY_4(DRIVER, cuMemcpyAtoD, CUdeviceptr_v1, CUarray, unsigned, unsigned, COPY(DEVICE_TO_DEVICE, d))
ENTRY_4(DRIVER, cuMemcpyAtoD_v2, CUdeviceptr, CUarray, size_t, size_t, COPY(DEVICE_TO_DEVICE, d))
ENTRY_4(DRIVER, cuMemcpyAtoD_v2_ptds, CUdeviceptr, CUarray, size_t, size_t, COPY(DEVICE_TO_DEVICE, d))
ENTRY_4(DRIVER, cuMemcpyAtoH, void *, CUarray, unsigned, unsigned, COPY(DEVICE_TO_HOST, d))
ENTRY_4(DRIVER, cuMemcpyAtoH_v2, void *, CUarray, size_t, size_t, COPY(DEVICE_TO_HOST, d))
ENTRY_4(DRIVER, cuMemcpyAtoH_v2_ptds, void *, CUarray, size_t, size_t, COPY(DEVICE_TO_HOST, d))
ENTRY_5(DRIVER, cuMemcpyAtoHAsync, void *, CUarray, unsigned, unsigned, CUstream, COPY(DEVICE_TO_HOST, d), STREAM(e))
ENTRY_5(DRIVER, cuMemcpyAtoHAsync_v2, void *, CUarray, size_t, size_t, CUstream, COPY(DEVICE_TO_HOST, d), STREAM(e))
ENTRY_5(DRIVER, cuMemcpyAtoHAsync_v2_ptsz, void *, CUarray, size_t, size_t, CUstream, COPY(DEVICE_TO_HOST, d),
        STREAM_PER_THREAD(e))
ENTRY_4(DRIVER, cuMemcpyDtoA, CUarray, unsigned, CUdeviceptr_v1, unsigned, COPY(DEVICE_TO_DEVICE, d))
ENTRY_4(DRIVER, cuMemcpyDtoA_v2, CUarray, size_t, CUdeviceptr, size_t, COPY(DEVICE_TO_DEVICE, d))
ENTRY_4(DRIVER, cuMemcpyDtoA_v2_ptds, CUarray, size_t, CUdeviceptr, size_t, COPY(DEVICE_TO_DEVICE, d))
ENTRY_3(DRIVER, cuMemcpyDtoD, CUdeviceptr_v1, CUdeviceptr_v1, unsigned, COPY(DEVICE_TO_DEVICE, c))
ENTRY_3(DRIVER, cuMemcpyDtoD_v2, CUdeviceptr, CUdeviceptr, size_t, COPY(DEVICE_TO_DEVICE, c))
ENTRY_3(DRIVER, cuMemcpyDtoD_v2_ptds, CUdeviceptr, CUdeviceptr, size_t, COPY(DEVICE_TO_DEVICE, c))
ENTRY_4(DRIVER, cuMemcpyDtoDAsync, CUdeviceptr_v1, CUdeviceptr_v1, unsigned, CUstream, COPY(DEVICE_TO_DEVICE, c),
        STREAM(d))
ENTRY_4(DRIVER, cuMemcpyDtoDAsync_v2, CUdeviceptr, CUdeviceptr, size_t, CUstream, COPY(DEVICE_TO_DEVICE, c), STREAM(d))
ENTRY_4(DRIVER, cuMemcpyDtoDAsync_v2_ptsz, CUdeviceptr, CUdeviceptr, size_t, CUstream, COPY(DEVICE_TO_DEVICE, c),
        STREAM_PER_THREAD(d))
ENTRY_3(DRIVER, cuMemcpyDtoH, void *, CUdeviceptr_v1, unsigned, COPY(DEVICE_TO_HOST, c))
ENTRY_4(DRIVER, cuMemcpyDtoHAsync, void *, CUdeviceptr_v1, unsigned, CUstream, COPY(DEVICE_TO_HOST, c), STREAM(d))
ENTRY_4(DRIVER, cuMemcpyDtoHAsync_v2, void *, CUdeviceptr, size_t, CUstream, COPY(DEVICE_TO_HOST, c), STREAM(d))
ENTRY_4(DRIVER, cuMemcpyDtoHAsync_v2_ptsz, void *, CUdeviceptr, size_t, CUstream, COPY(DEVICE_TO_HOST, c),
        STREAM_PER_THREAD(d))
ENTRY_4(DRIVER, cuMemcpyHtoA, CUarray, unsigned, const void *, unsigned, COPY(HOST_TO_DEVICE, d))
ENTRY_4(DRIVER, cuMemcpyHtoA_v2, CUarray, size_t, const void *, size_t, COPY(HOST_TO_DEVICE, d))
ENTRY_4(DRIVER, cuMemcpyHtoA_v2_ptds, CUarray, size_t, const void *, size_t, COPY(HOST_TO_DEVICE, d))
ENTRY_5(DRIVER, cuMemcpyHtoAAsync, CUarray, unsigned, const void *, unsigned, CUstream, COPY(HOST_TO_DEVICE, d),
        STREAM(e))
ENTRY_5(DRIVER, cuMemcpyHtoAAsync_v2, CUarray, size_t, const void *, size_t, CUstream, COPY(HOST_TO_DEVICE, d),
        STREAM(e))
ENTRY_5(DRIVER, cuMemcpyHtoAAsync_v2_ptsz, CUarray, size_t, const void *, size_t, CUstream, COPY(HOST_TO_DEVICE, d),
        STREAM_PER_THREAD(e))
ENTRY_3(DRIVER, cuMemcpyHtoD, CUdeviceptr_v1, const void *, unsigned, COPY(HOST_TO_DEVICE, c))
ENTRY_3(DRIVER, cuMemcpyHtoD_v2, CUdeviceptr, const void *, size_t, COPY(HOST_TO_DEVICE, c))
ENTRY_3(DRIVER, cuMemcpyHtoD_v2_ptds, CUdeviceptr, const void *, size_t, COPY(HOST_TO_DEVICE, c))
ENTRY_4(DRIVER, cuMemcpyHtoDAsync, CUdeviceptr_v1, const void *, unsigned, CUstream, COPY(HOST_TO_DEVICE, c), STREAM(d))
ENTRY_4(DRIVER, cuMemcpyHtoDAsync_v2, CUdeviceptr, const void *, size_t, CUstream, COPY(HOST_TO_DEVICE, c), STREAM(d))
ENTRY_4(DRIVER, cuMemcpyHtoDAsync_v2_ptsz, CUdeviceptr, const void *, size_t, CUstream, COPY(HOST_TO_DEVICE, c),
        STREAM_PER_THREAD(d))
ENTRY_5(DRIVER, cuMemcpyPeer, CUdeviceptr, CUcontext, CUdeviceptr, CUcontext, size_t, COPY(DEVICE_TO_DEVICE, e))
ENTRY_5(DRIVER, cuMemcpyPeer_ptds, CUdeviceptr, CUcontext, CUdeviceptr, CUcontext, size_t, COPY(DEVICE_TO_DEVICE, e))
ENTRY_6(DRIVER, cuMemcpyPeerAsync, CUdeviceptr, CUcontext, CUdeviceptr, CUcontext, size_t, CUstream,
        COPY(DEVICE_TO_DEVICE, e), STREAM(f))
ENTRY_6(DRIVER, cuMemcpyPeerAsync_ptsz, CUdeviceptr, CUcontext, CUdeviceptr, CUcontext, size_t, CUstream,
        COPY(DEVICE_TO_DEVICE, e), STREAM_PER_THREAD(f))

/* fills */
ENTRY_3(DRIVER, cuMemsetD16, CUdeviceptr_v1, unsigned short, unsigned, BYTES((uint64_t)c * 2))
ENTRY_3(DRIVER, cuMemsetD16_v2, CUdeviceptr, unsigned short, size_t, BYTES((uint64_t)c * 2))
ENTRY_3(DRIVER, cuMemsetD16_v2_ptds, CUdeviceptr, unsigned short, size_t, BYTES((uint64_t)c * 2))
ENTRY_4(DRIVER, cuMemsetD16Async, CUdeviceptr, unsigned short, size_t, CUstream, BYTES((uint64_t)c * 2), STREAM(d))
ENTRY_4(DRIVER, cuMemsetD16Async_ptsz, CUdeviceptr, unsigned short, size_t, CUstream, BYTES((uint64_t)c * 2),
        STREAM_PER_THREAD(d))
ENTRY_5(DRIVER, cuMemsetD2D16, CUdeviceptr_v1, unsigned, unsigned short, unsigned, unsigned, BYTES((uint64_t)d * e * 2))
ENTRY_5(DRIVER, cuMemsetD2D16_v2, CUdeviceptr, size_t, unsigned short, size_t, size_t, BYTES((uint64_t)d * e * 2))
ENTRY_5(DRIVER, cuMemsetD2D16_v2_ptds, CUdeviceptr, size_t, unsigned short, size_t, size_t, BYTES((uint64_t)d * e * 2))
ENTRY_6(DRIVER, cuMemsetD2D16Async, CUdeviceptr, size_t, unsigned short, size_t, size_t, CUstream,
        BYTES((uint64_t)d * e * 2), STREAM(f))
ENTRY_6(DRIVER, cuMemsetD2D16Async_ptsz, CUdeviceptr, size_t, unsigned short, size_t, size_t, CUstream,
        BYTES((uint64_t)d * e * 2), STREAM_PER_THREAD(f))
ENTRY_5(DRIVER, cuMemsetD2D32, CUdeviceptr_v1, unsigned, unsigned, unsigned, unsigned, BYTES((uint64_t)d * e * 4))
ENTRY_5(DRIVER, cuMemsetD2D32_v2, CUdeviceptr, size_t, unsigned, size_t, size_t, BYTES((uint64_t)d * e * 4))
ENTRY_5(DRIVER, cuMemsetD2D32_v2_ptds, CUdeviceptr, size_t, unsigned, size_t, size_t, BYTES((uint64_t)d * e * 4))
ENTRY_6(DRIVER, cuMemsetD2D32Async, CUdeviceptr, size_t, unsigned, size_t, size_t, CUstream, BYTES((uint64_t)d * e * 4),
        STREAM(f))
ENTRY_6(DRIVER, cuMemsetD2D32Async_ptsz, CUdeviceptr, size_t, unsigned, size_t, size_t, CUstream,
        BYTES((uint64_t)d * e * 4), STREAM_PER_THREAD(f))
ENTRY_5(DRIVER, cuMemsetD2D8, CUdeviceptr_v1, unsigned, unsigned char, unsigned, unsigned, BYTES((uint64_t)d *e))
ENTRY_5(DRIVER, cuMemsetD2D8_v2, CUdeviceptr, size_t, unsigned char, size_t, size_t, BYTES((uint64_t)d *e))
ENTRY_5(DRIVER, cuMemsetD2D8_v2_ptds, CUdeviceptr, size_t, unsigned char, size_t, size_t, BYTES((uint64_t)d *e))
ENTRY_6(DRIVER, cuMemsetD2D8Async, CUdeviceptr, size_t, unsigned char, size_t, size_t, CUstream, BYTES((uint64_t)d *e),
        STREAM(f))
ENTRY_6(DRIVER, cuMemsetD2D8Async_ptsz, CUdeviceptr, size_t, unsigned char, size_t, size_t, CUstream,
        BYTES((uint64_t)d *e), STREAM_PER_THREAD(f))
ENTRY_3(DRIVER, cuMemsetD32, CUdeviceptr_v1, unsigned, unsigned, BYTES((uint64_t)c * 4))
ENTRY_3(DRIVER, cuMemsetD32_v2, CUdeviceptr, unsigned, size_t, BYTES((uint64_t)c * 4))
ENTRY_3(DRIVER, cuMemsetD32_v2_ptds, CUdeviceptr, unsigned, size_t, BYTES((uint64_t)c * 4))
ENTRY_4(DRIVER, cuMemsetD32Async, CUdeviceptr, unsigned, size_t, CUstream, BYTES((uint64_t)c * 4), STREAM(d))
ENTRY_4(DRIVER, cuMemsetD32Async_ptsz, CUdeviceptr, unsigned, size_t, CUstream, BYTES((uint64_t)c * 4),
        STREAM_PER_THREAD(d))
ENTRY_3(DRIVER, cuMemsetD8, CUdeviceptr_v1, unsigned char, unsigned, BYTES(c))
ENTRY_3(DRIVER, cuMemsetD8_v2, CUdeviceptr, unsigned char, size_t, BYTES(c))
ENTRY_3(DRIVER, cuMemsetD8_v2_ptds, CUdeviceptr, unsigned char, size_t, BYTES(c))
ENTRY_4(DRIVER, cuMemsetD8Async, CUdeviceptr, unsigned char, size_t, CUstream, BYTES(c), STREAM(d))
ENTRY_4(DRIVER, cuMemsetD8Async_ptsz, CUdeviceptr, unsigned char, size_t, CUstream, BYTES(c), STREAM_PER_THREAD(d))

/* memory of the host, and pages on their way */
ENTRY_2(DRIVER, cuMemAllocHost, void **, unsigned, BYTES(b))
ENTRY_2(DRIVER, cuMemAllocHost_v2, void **, size_t, BYTES(b))
ENTRY_1(DRIVER, cuMemFreeHost, void *)
ENTRY_3(DRIVER, cuMemHostAlloc, void **, size_t, unsigned, BYTES(b))
ENTRY_3(DRIVER, cuMemHostRegister, void *, size_t, unsigned, BYTES(b))
ENTRY_3(DRIVER, cuMemHostRegister_v2, void *, size_t, unsigned, BYTES(b))
ENTRY_1(DRIVER, cuMemHostUnregister, void *)
ENTRY_4(DRIVER, cuMemPrefetchAsync, CUdeviceptr, size_t, CUdevice, CUstream, BYTES(b), STREAM(d))
ENTRY_4(DRIVER, cuMemPrefetchAsync_ptsz, CUdeviceptr, size_t, CUdevice, CUstream, BYTES(b), STREAM_PER_THREAD(d))
ENTRY_5(DRIVER, cuMemPrefetchAsync_v2, CUdeviceptr, size_t, CUmemLocation, unsigned, CUstream, BYTES(b), STREAM(e))
ENTRY_5(DRIVER, cuMemPrefetchAsync_v2_ptsz, CUdeviceptr, size_t, CUmemLocation, unsigned, CUstream, BYTES(b),
        STREAM_PER_THREAD(e))

/* events */
ENTRY_2(DRIVER, cuEventCreate, CUevent *, unsigned)
ENTRY_1(DRIVER, cuEventDestroy, CUevent)
ENTRY_1(DRIVER, cuEventDestroy_v2, CUevent)
ENTRY_2(DRIVER, cuEventRecord, CUevent, CUstream, STREAM(b))
ENTRY_2(DRIVER, cuEventRecord_ptsz, CUevent, CUstream, STREAM_PER_THREAD(b))
ENTRY_3(DRIVER, cuEventRecordWithFlags, CUevent, CUstream, unsigned, STREAM(b))
ENTRY_3(DRIVER, cuEventRecordWithFlags_ptsz, CUevent, CUstream, unsigned, STREAM_PER_THREAD(b))

/* streams */
ENTRY_3(DRIVER, cuLaunchHostFunc, CUstream, CUhostFn, void *, STREAM(a))
ENTRY_3(DRIVER, cuLaunchHostFunc_ptsz, CUstream, CUhostFn, void *, STREAM_PER_THREAD(a))
ENTRY_4(DRIVER, cuStreamAddCallback, CUstream, CUstreamCallback, void *, unsigned, STREAM(a))
ENTRY_4(DRIVER, cuStreamAddCallback_ptsz, CUstream, CUstreamCallback, void *, unsigned, STREAM_PER_THREAD(a))
ENTRY_2(DRIVER, cuStreamBeginCapture_v2, CUstream, CUstreamCaptureMode, STREAM(a), CAPTURES)
ENTRY_2(DRIVER, cuStreamBeginCapture_v2_ptsz, CUstream, CUstreamCaptureMode, STREAM_PER_THREAD(a), CAPTURES)
ENTRY_2(DRIVER, cuStreamEndCapture, CUstream, CUgraph *, STREAM(a))
ENTRY_2(DRIVER, cuStreamEndCapture_ptsz, CUstream, CUgraph *, STREAM_PER_THREAD(a))
ENTRY_3(DRIVER, cuStreamWaitEvent, CUstream, CUevent, unsigned, STREAM(a))
ENTRY_3(DRIVER, cuStreamWaitEvent_ptsz, CUstream, CUevent, unsigned, STREAM_PER_THREAD(a))

/* the beginning, and whose turn it is */
ENTRY_1(DRIVER, cuCtxPopCurrent, CUcontext *, CHANGES_CONTEXT)
ENTRY_1(DRIVER, cuCtxPopCurrent_v2, CUcontext *, CHANGES_CONTEXT)
ENTRY_1(DRIVER, cuCtxPushCurrent, CUcontext, CHANGES_CONTEXT)
ENTRY_1(DRIVER, cuCtxPushCurrent_v2, CUcontext, CHANGES_CONTEXT)
ENTRY_1(DRIVER, cuCtxSetCurrent, CUcontext, CHANGES_CONTEXT)
ENTRY_3(DRIVER, cuLibraryGetKernel, CUkernel *, CUlibrary, const char *)
ENTRY_3(DRIVER, cuModuleGetFunction, CUfunction *, CUmodule, const char *)
