/* --query-gpu and --query-compute-apps: lists of fields, as CSV. */
#include "nvidia_smi_report.h"

#include <stdio.h>
#include <string.h>

/* The source of a field. */
struct subject {
  const struct smi_report *report;
  const struct smi_device *device;
  const nvmlProcessInfo_t *process;
};

struct field {
  const char *name;
  const char *header;
  const char *unit; /* "": none */
  void (*print)(const struct subject *subject);
};

#define TEXT(function, value)                                                                                          \
  static void function(const struct subject *subject) {                                                                \
    printf("%s", value);                                                                                               \
  }
#define NUMBER(function, value)                                                                                        \
  static void function(const struct subject *subject) {                                                                \
    printf("%llu", (unsigned long long)(value));                                                                       \
  }

NUMBER(print_index, subject->device->index)
NUMBER(print_count, subject->report->count)
TEXT(print_name, subject->device->name)
TEXT(print_uuid, subject->device->uuid)
TEXT(print_bus_id, subject->device->pci.busId)
TEXT(print_driver, subject->report->driver_version)
NUMBER(print_total, smi_mib(subject->device->memory.total))
NUMBER(print_reserved, smi_mib(subject->device->memory.reserved))
NUMBER(print_used, smi_mib(subject->device->memory.used))
NUMBER(print_free, smi_mib(subject->device->memory.free))
NUMBER(print_busy, subject->device->utilization.gpu)
NUMBER(print_memory_busy, subject->device->utilization.memory)
NUMBER(print_pid, subject->process->pid)
TEXT(print_process, smi_process_name(subject->process->pid))
NUMBER(print_process_memory, smi_mib(subject->process->usedGpuMemory))

static const struct field gpu_fields[] = {
    {"index", "index", "", print_index},
    {"count", "count", "", print_count},
    {"name", "name", "", print_name},
    {"gpu_name", "name", "", print_name},
    {"uuid", "uuid", "", print_uuid},
    {"gpu_uuid", "uuid", "", print_uuid},
    {"pci.bus_id", "pci.bus_id", "", print_bus_id},
    {"driver_version", "driver_version", "", print_driver},
    {"memory.total", "memory.total [MiB]", " MiB", print_total},
    {"memory.reserved", "memory.reserved [MiB]", " MiB", print_reserved},
    {"memory.used", "memory.used [MiB]", " MiB", print_used},
    {"memory.free", "memory.free [MiB]", " MiB", print_free},
    {"utilization.gpu", "utilization.gpu [%]", " %", print_busy},
    {"utilization.memory", "utilization.memory [%]", " %", print_memory_busy},
    {0},
};

static const struct field application_fields[] = {
    {"pid", "pid", "", print_pid},
    {"process_name", "process_name", "", print_process},
    {"name", "process_name", "", print_process},
    {"used_memory", "used_gpu_memory [MiB]", " MiB", print_process_memory},
    {"used_gpu_memory", "used_gpu_memory [MiB]", " MiB", print_process_memory},
    {"gpu_name", "gpu_name", "", print_name},
    {"gpu_uuid", "gpu_uuid", "", print_uuid},
    {"gpu_bus_id", "gpu_bus_id", "", print_bus_id},
    {0},
};

#define MAX_FIELDS 64

struct query {
  unsigned count;
  const struct field *fields[MAX_FIELDS];
  struct smi_csv format;
};

static bool parse(const char *list, const struct field *known, struct query *query) {
  while (*list) {
    size_t length = strcspn(list, ",");
    const struct field *field = known;
    while (field->name && (strlen(field->name) != length || strncmp(field->name, list, length) != 0))
      field++;
    if (!field->name || query->count == MAX_FIELDS) {
      fprintf(stderr, "nvidia-smi (simulated): field \"%.*s\" is not a valid field to query\n", (int)length, list);
      return false;
    }
    query->fields[query->count++] = field;
    list += length + (list[length] == ',');
  }
  return true;
}

static void print_header(const struct query *query) {
  for (unsigned i = 0; query->format.header && i < query->count; i++)
    printf("%s%s", query->fields[i]->header, i + 1 < query->count ? ", " : "\n");
}

static void print_line(const struct query *query, const struct subject *subject) {
  for (unsigned i = 0; i < query->count; i++) {
    query->fields[i]->print(subject);
    printf("%s%s", query->format.units ? query->fields[i]->unit : "", i + 1 < query->count ? ", " : "\n");
  }
}

bool smi_print_gpus(const struct smi_report *report, const char *fields, struct smi_csv format) {
  struct query query = {.format = format};
  if (!parse(fields, gpu_fields, &query))
    return false;
  print_header(&query);
  for (unsigned i = 0; i < report->count; i++)
    print_line(&query, &(struct subject){report, &report->devices[i], NULL});
  return true;
}

bool smi_print_applications(const struct smi_report *report, const char *fields, struct smi_csv format) {
  struct query query = {.format = format};
  if (!parse(fields, application_fields, &query))
    return false;
  print_header(&query);
  for (unsigned i = 0; i < report->count; i++)
    for (unsigned j = 0; j < report->devices[i].process_count; j++)
      print_line(&query, &(struct subject){report, &report->devices[i], &report->devices[i].processes[j]});
  return true;
}
