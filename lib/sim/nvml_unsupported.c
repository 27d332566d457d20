/* Questions that programs ask every card and that are not simulated: "not supported", never an invented number. */
#include "nvml_handles.h"

#define NOT_SUPPORTED(name, ...)                                                                                       \
  nvmlReturn_t DECLDIR name(nvmlDevice_t handle, __VA_ARGS__) {                                                        \
    unsigned device;                                                                                                   \
    nvmlReturn_t result = nvml_device(handle, &device);                                                                \
    return result == NVML_SUCCESS ? NVML_ERROR_NOT_SUPPORTED : result;                                                 \
  }

#pragma GCC diagnostic ignored "-Wunused-parameter"

NOT_SUPPORTED(nvmlDeviceGetTemperature, nvmlTemperatureSensors_t sensor, unsigned int *celsius)
NOT_SUPPORTED(nvmlDeviceGetPowerUsage, unsigned int *milliwatts)
NOT_SUPPORTED(nvmlDeviceGetEnforcedPowerLimit, unsigned int *milliwatts)
NOT_SUPPORTED(nvmlDeviceGetPowerManagementLimit, unsigned int *milliwatts)
NOT_SUPPORTED(nvmlDeviceGetTotalEnergyConsumption, unsigned long long *millijoules)
NOT_SUPPORTED(nvmlDeviceGetFanSpeed, unsigned int *percent)
NOT_SUPPORTED(nvmlDeviceGetClockInfo, nvmlClockType_t type, unsigned int *megahertz)
NOT_SUPPORTED(nvmlDeviceGetMaxClockInfo, nvmlClockType_t type, unsigned int *megahertz)
NOT_SUPPORTED(nvmlDeviceGetPerformanceState, nvmlPstates_t *state)
NOT_SUPPORTED(nvmlDeviceGetPersistenceMode, nvmlEnableState_t *mode)
NOT_SUPPORTED(nvmlDeviceGetDisplayActive, nvmlEnableState_t *active)
NOT_SUPPORTED(nvmlDeviceGetEccMode, nvmlEnableState_t *current, nvmlEnableState_t *pending)
NOT_SUPPORTED(nvmlDeviceGetBAR1MemoryInfo, nvmlBAR1Memory_t *memory)
NOT_SUPPORTED(nvmlDeviceGetSerial, char *serial, unsigned int length)
NOT_SUPPORTED(nvmlDeviceGetEncoderUtilization, unsigned int *percent, unsigned int *period_us)
NOT_SUPPORTED(nvmlDeviceGetDecoderUtilization, unsigned int *percent, unsigned int *period_us)
