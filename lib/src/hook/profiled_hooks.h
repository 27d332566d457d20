/* The list of functions that are only recorded, for hook/hooks.h: they are handed out while there is a profile. Each
 * has a row in cuda/copies.c. */
#ifndef VGPU_HOOK_PROFILED_HOOKS_H
#define VGPU_HOOK_PROFILED_HOOKS_H

/* X(symbol) */
#define CUDA_PROFILED(X)                                                                                               \
  /* copies */                                                                                                         \
  X(cuMemcpy)                                                                                                          \
  X(cuMemcpy_ptds)                                                                                                     \
  X(cuMemcpy2D)                                                                                                        \
  X(cuMemcpy2D_v2)                                                                                                     \
  X(cuMemcpy2D_v2_ptds)                                                                                                \
  X(cuMemcpy2DAsync)                                                                                                   \
  X(cuMemcpy2DAsync_v2)                                                                                                \
  X(cuMemcpy2DAsync_v2_ptsz)                                                                                           \
  X(cuMemcpy2DUnaligned)                                                                                               \
  X(cuMemcpy2DUnaligned_v2)                                                                                            \
  X(cuMemcpy2DUnaligned_v2_ptds)                                                                                       \
  X(cuMemcpy3D)                                                                                                        \
  X(cuMemcpy3D_v2)                                                                                                     \
  X(cuMemcpy3D_v2_ptds)                                                                                                \
  X(cuMemcpy3DAsync)                                                                                                   \
  X(cuMemcpy3DAsync_v2)                                                                                                \
  X(cuMemcpy3DAsync_v2_ptsz)                                                                                           \
  X(cuMemcpy3DPeer)                                                                                                    \
  X(cuMemcpy3DPeer_ptds)                                                                                               \
  X(cuMemcpy3DPeerAsync)                                                                                               \
  X(cuMemcpy3DPeerAsync_ptsz)                                                                                          \
  X(cuMemcpyAsync)                                                                                                     \
  X(cuMemcpyAsync_ptsz)                                                                                                \
  X(cuMemcpyAtoA)                                                                                                      \
  X(cuMemcpyAtoA_v2)                                                                                                   \
  X(cuMemcpyAtoA_v2_ptds)                                                                                              \
  X(cuMemcpyAtoD)                                                                                                      \
  X(cuMemcpyAtoD_v2)                                                                                                   \
  X(cuMemcpyAtoD_v2_ptds)                                                                                              \
  X(cuMemcpyAtoH)                                                                                                      \
  X(cuMemcpyAtoH_v2)                                                                                                   \
  X(cuMemcpyAtoH_v2_ptds)                                                                                              \
  X(cuMemcpyAtoHAsync)                                                                                                 \
  X(cuMemcpyAtoHAsync_v2)                                                                                              \
  X(cuMemcpyAtoHAsync_v2_ptsz)                                                                                         \
  X(cuMemcpyDtoA)                                                                                                      \
  X(cuMemcpyDtoA_v2)                                                                                                   \
  X(cuMemcpyDtoA_v2_ptds)                                                                                              \
  X(cuMemcpyDtoD)                                                                                                      \
  X(cuMemcpyDtoD_v2)                                                                                                   \
  X(cuMemcpyDtoD_v2_ptds)                                                                                              \
  X(cuMemcpyDtoDAsync)                                                                                                 \
  X(cuMemcpyDtoDAsync_v2)                                                                                              \
  X(cuMemcpyDtoDAsync_v2_ptsz)                                                                                         \
  X(cuMemcpyDtoH)                                                                                                      \
  X(cuMemcpyDtoHAsync)                                                                                                 \
  X(cuMemcpyDtoHAsync_v2)                                                                                              \
  X(cuMemcpyDtoHAsync_v2_ptsz)                                                                                         \
  X(cuMemcpyHtoA)                                                                                                      \
  X(cuMemcpyHtoA_v2)                                                                                                   \
  X(cuMemcpyHtoA_v2_ptds)                                                                                              \
  X(cuMemcpyHtoAAsync)                                                                                                 \
  X(cuMemcpyHtoAAsync_v2)                                                                                              \
  X(cuMemcpyHtoAAsync_v2_ptsz)                                                                                         \
  X(cuMemcpyHtoD)                                                                                                      \
  X(cuMemcpyHtoD_v2)                                                                                                   \
  X(cuMemcpyHtoD_v2_ptds)                                                                                              \
  X(cuMemcpyHtoDAsync)                                                                                                 \
  X(cuMemcpyHtoDAsync_v2)                                                                                              \
  X(cuMemcpyHtoDAsync_v2_ptsz)                                                                                         \
  X(cuMemcpyPeer)                                                                                                      \
  X(cuMemcpyPeer_ptds)                                                                                                 \
  X(cuMemcpyPeerAsync)                                                                                                 \
  X(cuMemcpyPeerAsync_ptsz)                                                                                            \
  /* fills */                                                                                                          \
  X(cuMemsetD16)                                                                                                       \
  X(cuMemsetD16_v2)                                                                                                    \
  X(cuMemsetD16_v2_ptds)                                                                                               \
  X(cuMemsetD16Async)                                                                                                  \
  X(cuMemsetD16Async_ptsz)                                                                                             \
  X(cuMemsetD2D16)                                                                                                     \
  X(cuMemsetD2D16_v2)                                                                                                  \
  X(cuMemsetD2D16_v2_ptds)                                                                                             \
  X(cuMemsetD2D16Async)                                                                                                \
  X(cuMemsetD2D16Async_ptsz)                                                                                           \
  X(cuMemsetD2D32)                                                                                                     \
  X(cuMemsetD2D32_v2)                                                                                                  \
  X(cuMemsetD2D32_v2_ptds)                                                                                             \
  X(cuMemsetD2D32Async)                                                                                                \
  X(cuMemsetD2D32Async_ptsz)                                                                                           \
  X(cuMemsetD2D8)                                                                                                      \
  X(cuMemsetD2D8_v2)                                                                                                   \
  X(cuMemsetD2D8_v2_ptds)                                                                                              \
  X(cuMemsetD2D8Async)                                                                                                 \
  X(cuMemsetD2D8Async_ptsz)                                                                                            \
  X(cuMemsetD32)                                                                                                       \
  X(cuMemsetD32_v2)                                                                                                    \
  X(cuMemsetD32_v2_ptds)                                                                                               \
  X(cuMemsetD32Async)                                                                                                  \
  X(cuMemsetD32Async_ptsz)                                                                                             \
  X(cuMemsetD8)                                                                                                        \
  X(cuMemsetD8_v2)                                                                                                     \
  X(cuMemsetD8_v2_ptds)                                                                                                \
  X(cuMemsetD8Async)                                                                                                   \
  X(cuMemsetD8Async_ptsz)                                                                                              \
  /* memory of the host, and pages on their way */                                                                     \
  X(cuMemAllocHost)                                                                                                    \
  X(cuMemAllocHost_v2)                                                                                                 \
  X(cuMemFreeHost)                                                                                                     \
  X(cuMemHostAlloc)                                                                                                    \
  X(cuMemHostRegister)                                                                                                 \
  X(cuMemHostRegister_v2)                                                                                              \
  X(cuMemHostUnregister)                                                                                               \
  X(cuMemPrefetchAsync)                                                                                                \
  X(cuMemPrefetchAsync_ptsz)                                                                                           \
  X(cuMemPrefetchAsync_v2)                                                                                             \
  X(cuMemPrefetchAsync_v2_ptsz)                                                                                        \
  /* events */                                                                                                         \
  X(cuEventCreate)                                                                                                     \
  X(cuEventDestroy)                                                                                                    \
  X(cuEventDestroy_v2)                                                                                                 \
  X(cuEventRecord)                                                                                                     \
  X(cuEventRecord_ptsz)                                                                                                \
  X(cuEventRecordWithFlags)                                                                                            \
  X(cuEventRecordWithFlags_ptsz)                                                                                       \
  /* streams */                                                                                                        \
  X(cuLaunchHostFunc)                                                                                                  \
  X(cuLaunchHostFunc_ptsz)                                                                                             \
  X(cuStreamAddCallback)                                                                                               \
  X(cuStreamAddCallback_ptsz)                                                                                          \
  X(cuStreamBeginCapture_v2)                                                                                           \
  X(cuStreamBeginCapture_v2_ptsz)                                                                                      \
  X(cuStreamEndCapture)                                                                                                \
  X(cuStreamEndCapture_ptsz)                                                                                           \
  X(cuStreamWaitEvent)                                                                                                 \
  X(cuStreamWaitEvent_ptsz)                                                                                            \
  /* the beginning, and whose turn it is */                                                                            \
  X(cuCtxPopCurrent)                                                                                                   \
  X(cuCtxPopCurrent_v2)                                                                                                \
  X(cuCtxPushCurrent)                                                                                                  \
  X(cuCtxPushCurrent_v2)                                                                                               \
  X(cuCtxSetCurrent)                                                                                                   \
  X(cuLibraryGetKernel)                                                                                                \
  X(cuModuleGetFunction)

#endif
