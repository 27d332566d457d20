/* Shared by the parts of the simulated nvidia-smi. */
#pragma once

#include "nvml_api.h"

#include <stdbool.h>

#define SMI_MAX_PROCESSES 1024

/* The functions of NVML that are used, typed by the header. */
#define SMI_FUNCTIONS(X)                                                                                               \
  X(nvmlInit_v2)                                                                                                       \
  X(nvmlShutdown)                                                                                                      \
  X(nvmlErrorString)                                                                                                   \
  X(nvmlSystemGetDriverVersion)                                                                                        \
  X(nvmlSystemGetCudaDriverVersion_v2)                                                                                 \
  X(nvmlSystemGetProcessName)                                                                                          \
  X(nvmlDeviceGetCount_v2)                                                                                             \
  X(nvmlDeviceGetHandleByIndex_v2)                                                                                     \
  X(nvmlDeviceGetName)                                                                                                 \
  X(nvmlDeviceGetUUID)                                                                                                 \
  X(nvmlDeviceGetMinorNumber)                                                                                          \
  X(nvmlDeviceGetPciInfo_v3)                                                                                           \
  X(nvmlDeviceGetMemoryInfo_v2)                                                                                        \
  X(nvmlDeviceGetUtilizationRates)                                                                                     \
  X(nvmlDeviceGetMigMode)                                                                                              \
  X(nvmlDeviceGetComputeRunningProcesses_v3)

struct smi_nvml {
#define FIELD(name) __typeof__(name) *name;
  SMI_FUNCTIONS(FIELD)
#undef FIELD
};
extern struct smi_nvml nvml;

/* A GPU, as it was read. */
struct smi_device {
  unsigned index;
  unsigned minor_number;
  char name[NVML_DEVICE_NAME_V2_BUFFER_SIZE];
  char uuid[NVML_DEVICE_UUID_V2_BUFFER_SIZE];
  nvmlPciInfo_t pci;
  nvmlMemory_v2_t memory;
  nvmlUtilization_t utilization;
  unsigned process_count;
  nvmlProcessInfo_t processes[SMI_MAX_PROCESSES];
};

struct smi_report {
  char driver_version[NVML_SYSTEM_DRIVER_VERSION_BUFFER_SIZE + 32];
  int cuda_version; /* 1000 * major + 10 * minor */
  unsigned count;   /* number of the devices chosen */
  struct smi_device *devices;
};

/* Finds the functions of NVML, and reads what is there of a list of devices, NULL for all. Ends the program where that
 * cannot be. */
void smi_load(void);
void smi_read_report(struct smi_report *report, const char *chosen);

/* "?" for a process that this PID namespace does not know. */
const char *smi_process_name(unsigned pid);

unsigned long long smi_mib(unsigned long long bytes);

void smi_print_table(const struct smi_report *report);
void smi_print_xml(const struct smi_report *report);

/* Prints the fields of a comma-separated list; false when one is not known (said on stderr). */
struct smi_csv {
  bool header, units;
};
bool smi_print_gpus(const struct smi_report *report, const char *fields, struct smi_csv format);
bool smi_print_applications(const struct smi_report *report, const char *fields, struct smi_csv format);
