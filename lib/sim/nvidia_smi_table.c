/* The table that nvidia-smi prints without options. */
#include "nvidia_smi_report.h"

#include <stdio.h>

#define WIDTH 82 /* between the borders and one blank on either side */

static void print_device(const struct smi_device *device) {
  printf("| %3u  %-26.26s %-16.16s  %8lluMiB / %8lluMiB  %4u%% |\n", device->index, device->name, device->pci.busId,
         smi_mib(device->memory.used), smi_mib(device->memory.total), device->utilization.gpu);
}

static void print_processes(const struct smi_device *device) {
  for (unsigned i = 0; i < device->process_count; i++)
    printf("| %3u  %9u  C  %-44.44s  %14lluMiB |\n", device->index, device->processes[i].pid,
           smi_process_name(device->processes[i].pid), smi_mib(device->processes[i].usedGpuMemory));
}

static void print_rule(void) {
  putchar('+');
  for (int i = 0; i < WIDTH + 2; i++)
    putchar('-');
  puts("+");
}

void smi_print_table(const struct smi_report *report) {
  unsigned processes = 0;
  print_rule();
  printf("| SIMULATED GPUs, no hardware     Driver Version: %-15.15s CUDA Version: %2d.%d |\n", report->driver_version,
         report->cuda_version / 1000, report->cuda_version % 1000 / 10);
  print_rule();
  printf("| GPU  %-26s %-16s  %25s %6s |\n", "Name", "Bus-Id", "Memory-Usage", "Util");
  for (unsigned i = 0; i < report->count; i++)
    print_device(&report->devices[i]);
  print_rule();
  printf("| GPU        PID  T  %-44s  %17s |\n", "Process name", "GPU Memory");
  for (unsigned i = 0; i < report->count; i++) {
    print_processes(&report->devices[i]);
    processes += report->devices[i].process_count;
  }
  if (processes == 0)
    printf("| %-*s |\n", WIDTH, "No running processes found");
  print_rule();
}
