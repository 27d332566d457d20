/* A small nvidia-smi for the simulated world. Like the real one it finds NVML with dlopen and dlsym, so that what it
 * shows is what any program would see. */
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "nvml_api.h"

#define MAX_PROCESSES 1024

/* The functions that are used, typed by the header. */
#define FUNCTIONS(X)                                                                                                   \
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
  X(nvmlDeviceGetPciInfo_v3)                                                                                           \
  X(nvmlDeviceGetMemoryInfo)                                                                                           \
  X(nvmlDeviceGetUtilizationRates)                                                                                     \
  X(nvmlDeviceGetComputeRunningProcesses_v3)

static struct {
#define FIELD(name) __typeof__(name) *name;
  FUNCTIONS(FIELD)
#undef FIELD
} nvml;

static void load(void) {
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
  FUNCTIONS(LOOKUP)
#undef LOOKUP
}

static void check(nvmlReturn_t result, const char *what) {
  if (result == NVML_SUCCESS)
    return;
  fprintf(stderr, "nvidia-smi (simulated): %s: %s\n", what, nvml.nvmlErrorString(result));
  exit((int)result);
}

static nvmlDevice_t device_at(unsigned index) {
  nvmlDevice_t device;
  check(nvml.nvmlDeviceGetHandleByIndex_v2(index, &device), "device");
  return device;
}

static void print_list(unsigned count) {
  char name[NVML_DEVICE_NAME_V2_BUFFER_SIZE], uuid[NVML_DEVICE_UUID_V2_BUFFER_SIZE];
  for (unsigned i = 0; i < count; i++) {
    check(nvml.nvmlDeviceGetName(device_at(i), name, sizeof name), "name");
    check(nvml.nvmlDeviceGetUUID(device_at(i), uuid, sizeof uuid), "UUID");
    printf("GPU %u: %s (UUID: %s)\n", i, name, uuid);
  }
}

static void print_device(unsigned index) {
  char name[NVML_DEVICE_NAME_V2_BUFFER_SIZE];
  nvmlPciInfo_t pci;
  nvmlMemory_t memory;
  nvmlUtilization_t utilization;
  nvmlDevice_t device = device_at(index);
  check(nvml.nvmlDeviceGetName(device, name, sizeof name), "name");
  check(nvml.nvmlDeviceGetPciInfo_v3(device, &pci), "PCI address");
  check(nvml.nvmlDeviceGetMemoryInfo(device, &memory), "memory");
  check(nvml.nvmlDeviceGetUtilizationRates(device, &utilization), "utilization");
  printf("| %3u  %-26.26s %-16.16s  %8lluMiB / %8lluMiB  %4u%% |\n", index, name, pci.busId,
         memory.used / (unsigned long long)MIB, memory.total / (unsigned long long)MIB, utilization.gpu);
}

static unsigned print_processes(unsigned index) {
  static nvmlProcessInfo_t processes[MAX_PROCESSES];
  unsigned count = MAX_PROCESSES;
  check(nvml.nvmlDeviceGetComputeRunningProcesses_v3(device_at(index), &count, processes), "processes");
  for (unsigned i = 0; i < count; i++) {
    char name[256];
    if (nvml.nvmlSystemGetProcessName(processes[i].pid, name, sizeof name) != NVML_SUCCESS)
      snprintf(name, sizeof name, "?");
    printf("| %3u  %9u  C  %-44.44s  %14lluMiB |\n", index, processes[i].pid, name,
           processes[i].usedGpuMemory / (unsigned long long)MIB);
  }
  return count;
}

#define WIDTH 82 /* between the borders and one blank on either side */

static void print_rule(void) {
  putchar('+');
  for (int i = 0; i < WIDTH + 2; i++)
    putchar('-');
  puts("+");
}

static void print_table(unsigned count) {
  char driver[NVML_SYSTEM_DRIVER_VERSION_BUFFER_SIZE + 32];
  int cuda;
  unsigned processes = 0;
  check(nvml.nvmlSystemGetDriverVersion(driver, sizeof driver), "driver version");
  check(nvml.nvmlSystemGetCudaDriverVersion_v2(&cuda), "CUDA version");
  print_rule();
  printf("| SIMULATED GPUs, no hardware     Driver Version: %-15.15s CUDA Version: %2d.%d |\n", driver, cuda / 1000,
         cuda % 1000 / 10);
  print_rule();
  printf("| GPU  %-26s %-16s  %25s %6s |\n", "Name", "Bus-Id", "Memory-Usage", "Util");
  for (unsigned i = 0; i < count; i++)
    print_device(i);
  print_rule();
  printf("| GPU        PID  T  %-44s  %17s |\n", "Process name", "GPU Memory");
  for (unsigned i = 0; i < count; i++)
    processes += print_processes(i);
  if (processes == 0)
    printf("| %-*s |\n", WIDTH, "No running processes found");
  print_rule();
}

int main(int argument_count, char **arguments) {
  unsigned count;
  bool list = argument_count == 2 && strcmp(arguments[1], "-L") == 0;
  if (argument_count > 1 && !list) {
    fprintf(stderr, "nvidia-smi (simulated): only -L is understood, not %s\n", arguments[1]);
    return 2;
  }
  load();
  check(nvml.nvmlInit_v2(), "nvmlInit");
  check(nvml.nvmlDeviceGetCount_v2(&count), "device count");
  if (list)
    print_list(count);
  else
    print_table(count);
  nvml.nvmlShutdown();
  return 0;
}
