/* Where the program enters the functions of NVML that are caught. */
#include "hook/hooks.h"

#define ENTRY(name, parameters, arguments)                                                                             \
  HOOK nvmlReturn_t entry_##name parameters {                                                                          \
    return KEEPING_ERRNO(name arguments);                                                                              \
  }
#define ENTRY_2(name, A, B) ENTRY(name, (A a, B b), (a, b))
#define ENTRY_3(name, A, B, C) ENTRY(name, (A a, B b, C c), (a, b, c))
#define ENTRY_4(name, A, B, C, D) ENTRY(name, (A a, B b, C c, D d), (a, b, c, d))
#define ENTRY_6(name, A, B, C, D, E, F) ENTRY(name, (A a, B b, C c, D d, E e, F f), (a, b, c, d, e, f))

ENTRY_2(nvmlDeviceGetMemoryInfo, nvmlDevice_t, nvmlMemory_t *)
ENTRY_2(nvmlDeviceGetMemoryInfo_v2, nvmlDevice_t, nvmlMemory_v2_t *)
ENTRY_3(nvmlDeviceGetComputeRunningProcesses, nvmlDevice_t, unsigned *, nvmlProcessInfo_v1_t *)
ENTRY_3(nvmlDeviceGetComputeRunningProcesses_v2, nvmlDevice_t, unsigned *, nvmlProcessInfo_v2_t *)
ENTRY_3(nvmlDeviceGetComputeRunningProcesses_v3, nvmlDevice_t, unsigned *, nvmlProcessInfo_t *)
ENTRY_3(nvmlDeviceGetGraphicsRunningProcesses, nvmlDevice_t, unsigned *, nvmlProcessInfo_v1_t *)
ENTRY_3(nvmlDeviceGetGraphicsRunningProcesses_v2, nvmlDevice_t, unsigned *, nvmlProcessInfo_v2_t *)
ENTRY_3(nvmlDeviceGetGraphicsRunningProcesses_v3, nvmlDevice_t, unsigned *, nvmlProcessInfo_t *)
ENTRY_3(nvmlDeviceGetMPSComputeRunningProcesses, nvmlDevice_t, unsigned *, nvmlProcessInfo_v1_t *)
ENTRY_3(nvmlDeviceGetMPSComputeRunningProcesses_v2, nvmlDevice_t, unsigned *, nvmlProcessInfo_v2_t *)
ENTRY_3(nvmlDeviceGetMPSComputeRunningProcesses_v3, nvmlDevice_t, unsigned *, nvmlProcessInfo_t *)
ENTRY_2(nvmlDeviceGetRunningProcessDetailList, nvmlDevice_t, nvmlProcessDetailList_t *)
ENTRY_3(nvmlDeviceGetAccountingPids, nvmlDevice_t, unsigned *, unsigned *)
ENTRY_3(nvmlDeviceGetAccountingStats, nvmlDevice_t, unsigned, nvmlAccountingStats_t *)
ENTRY_2(nvmlDeviceGetUtilizationRates, nvmlDevice_t, nvmlUtilization_t *)
ENTRY_4(nvmlDeviceGetProcessUtilization, nvmlDevice_t, nvmlProcessUtilizationSample_t *, unsigned *, unsigned long long)
ENTRY_2(nvmlDeviceGetProcessesUtilizationInfo, nvmlDevice_t, nvmlProcessesUtilizationInfo_t *)
ENTRY_6(nvmlDeviceGetSamples, nvmlDevice_t, nvmlSamplingType_t, unsigned long long, nvmlValueType_t *, unsigned *,
        nvmlSample_t *)
