/* A small nvidia-smi for the simulated world. Like the real one it finds NVML with dlopen and dlsym, so that what it
 * shows is what any program would see. */
#include "nvidia_smi.h"

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct smi_nvml nvml;

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

/* ---- what was asked for ------------------------------------------------------------------------------------------ */

enum action { ACTION_TABLE, ACTION_LIST, ACTION_XML, ACTION_GPUS, ACTION_APPLICATIONS };

struct options {
  enum action action;
  const char *fields;
  const char *devices; /* NULL: all */
  bool query, xml, csv;
  struct smi_csv format;
};

static const char usage[] = "only -L, -i GPU[,GPU...], -q -x, --query-gpu=FIELDS, --query-compute-apps=FIELDS and "
                            "--format=csv[,noheader][,nounits] are understood";

static bool read_format(const char *text, struct options *options) {
  options->csv = strncmp(text, "csv", 3) == 0;
  options->format = (struct smi_csv){.header = !strstr(text, "noheader"), .units = !strstr(text, "nounits")};
  return options->csv;
}

/* The value of --name=value; NULL when the argument is another. */
static const char *value_of(const char *argument, const char *name) {
  size_t length = strlen(name);
  return strncmp(argument, name, length) == 0 && argument[length] == '=' ? argument + length + 1 : NULL;
}

static bool read_option(const char *argument, struct options *options) {
  const char *gpus = value_of(argument, "--query-gpu"), *applications = value_of(argument, "--query-compute-apps");
  const char *format = value_of(argument, "--format"), *id = value_of(argument, "--id");
  if (gpus || applications) {
    options->action = gpus ? ACTION_GPUS : ACTION_APPLICATIONS;
    options->fields = gpus ? gpus : applications;
    return true;
  }
  if (id) {
    options->devices = id;
    return true;
  }
  if (format)
    return read_format(format, options);
  options->query |= strcmp(argument, "-q") == 0;
  options->xml |= strcmp(argument, "-x") == 0;
  if (strcmp(argument, "-L") == 0)
    options->action = ACTION_LIST;
  return strcmp(argument, "-q") == 0 || strcmp(argument, "-x") == 0 || strcmp(argument, "-L") == 0;
}

static bool read_options(int count, char **arguments, struct options *options) {
  for (int i = 1; i < count; i++) {
    if (strcmp(arguments[i], "-i") == 0 && i + 1 < count) {
      options->devices = arguments[++i];
    } else if (!read_option(arguments[i], options)) {
      fprintf(stderr, "nvidia-smi (simulated): %s, not %s\n", usage, arguments[i]);
      return false;
    }
  }
  if (options->query && options->xml && options->action == ACTION_TABLE)
    options->action = ACTION_XML;
  bool good = options->query == options->xml && (options->fields != NULL) == options->csv;
  if (!good)
    fprintf(stderr, "nvidia-smi (simulated): %s\n", usage);
  return good;
}

/* ---- what is there ----------------------------------------------------------------------------------------------- */

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

static void read_report(struct smi_report *report, const char *chosen) {
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

static void print_list(const struct smi_report *report) {
  for (unsigned i = 0; i < report->count; i++)
    printf("GPU %u: %s (UUID: %s)\n", report->devices[i].index, report->devices[i].name, report->devices[i].uuid);
}

int main(int argument_count, char **arguments) {
  struct options options = {0};
  struct smi_report report = {0};
  bool good = true;
  if (!read_options(argument_count, arguments, &options))
    return 2;
  load();
  read_report(&report, options.devices);
  switch (options.action) {
  case ACTION_TABLE:
    smi_print_table(&report);
    break;
  case ACTION_LIST:
    print_list(&report);
    break;
  case ACTION_XML:
    smi_print_xml(&report);
    break;
  case ACTION_GPUS:
    good = smi_print_gpus(&report, options.fields, options.format);
    break;
  case ACTION_APPLICATIONS:
    good = smi_print_applications(&report, options.fields, options.format);
    break;
  }
  nvml.nvmlShutdown();
  free(report.devices);
  return good ? 0 : 2;
}
