/* A small nvidia-smi for the simulated world. Like the real one it finds NVML with dlopen and dlsym, so that what it
 * shows is what any program would see. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "nvidia_smi_report.h"

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
  smi_load();
  smi_read_report(&report, options.devices);
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
