#include "nvidia_smi_report.h"

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct smi_nvml nvml;

void smi_load(void) {
  void *library = dlopen("libnvidia-ml.so.1", RTLD_NOW);
  if (!library) {
    fprintf(stderr, "nvidia-smi (simulated): %s\n", dlerror());
    exit(12);
  }
#define LOOKUP(function)                                                                                               \
  *(void **)&nvml.function = dlsym(library, #function);                                                                \
  if (!nvml.function) {                                                                                                \
    fprintf(stderr, "nvidia-smi (simulated): no " #function " in libnvidia-ml.so.1\n");                                \
    exit(12);                                                                                                          \
  }
  SMI_FUNCTIONS(LOOKUP)
#undef LOOKUP
}

static void check(nvmlReturn_t result, const char *what) {
  if (result == NVML_SUCCESS)
    return;
  fprintf(stderr, "nvidia-smi (simulated): %s: %s\n", what, nvml.nvmlErrorString(result));
  exit((int)result);
}

unsigned long long smi_mib(unsigned long long bytes) {
  return bytes / (unsigned long long)MIB;
}

const char *smi_process_name(unsigned pid) {
  static char name[256];
  if (nvml.nvmlSystemGetProcessName(pid, name, sizeof name) != NVML_SUCCESS)
    return "?";
  return name;
}

static void read_device(unsigned index, struct smi_device *device) {
  nvmlDevice_t handle;
  device->index = index;
  device->memory.version = nvmlMemory_v2;
  device->process_count = SMI_MAX_PROCESSES;
  check(nvml.nvmlDeviceGetHandleByIndex_v2(index, &handle), "device");
  check(nvml.nvmlDeviceGetName(handle, device->name, sizeof device->name), "name");
  check(nvml.nvmlDeviceGetUUID(handle, device->uuid, sizeof device->uuid), "UUID");
  check(nvml.nvmlDeviceGetMinorNumber(handle, &device->minor_number), "minor number");
  check(nvml.nvmlDeviceGetPciInfo_v3(handle, &device->pci), "PCI address");
  check(nvml.nvmlDeviceGetMemoryInfo_v2(handle, &device->memory), "memory");
  unsigned mig, pending;
  if (nvml.nvmlDeviceGetMigMode(handle, &mig, &pending) == NVML_SUCCESS && mig) {
    device->process_count = 0; /* they are its instances' */
    return;
  }
  check(nvml.nvmlDeviceGetUtilizationRates(handle, &device->utilization), "utilization");
  check(nvml.nvmlDeviceGetComputeRunningProcesses_v3(handle, &device->process_count, device->processes), "processes");
}

/* Is the device, by its index or UUID, in a list such as "0,GPU-..."? */
static bool is_chosen(const struct smi_device *device, const char *list) {
  char index[16];
  int index_length = snprintf(index, sizeof index, "%u", device->index);
  while (list && *list) {
    size_t length = strcspn(list, ",");
    if ((length == (size_t)index_length && strncmp(list, index, length) == 0) ||
        (length == strlen(device->uuid) && strncmp(list, device->uuid, length) == 0))
      return true;
    list += length + (list[length] == ',');
  }
  return list == NULL;
}

void smi_read_report(struct smi_report *report, const char *chosen) {
  unsigned count;
  check(nvml.nvmlInit_v2(), "nvmlInit");
  check(nvml.nvmlSystemGetDriverVersion(report->driver_version, sizeof report->driver_version), "driver version");
  check(nvml.nvmlSystemGetCudaDriverVersion_v2(&report->cuda_version), "CUDA version");
  check(nvml.nvmlDeviceGetCount_v2(&count), "device count");
  report->devices = calloc(count + 1, sizeof *report->devices);
  if (report->devices == NULL)
    exit(1);
  for (unsigned index = 0; index < count; index++) {
    read_device(index, &report->devices[report->count]);
    report->count += is_chosen(&report->devices[report->count], chosen);
  }
  if (chosen && report->count == 0) {
    printf("No devices were found\n");
    exit(6);
  }
}
