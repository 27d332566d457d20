/* -q -x: the elements that programs read, named as by the real one. */
#include "nvidia_smi_report.h"

#include <stdio.h>

static void print_text(const char *element, const char *text) {
  printf("<%s>", element);
  for (; *text; text++) {
    if (*text == '<')
      fputs("&lt;", stdout);
    else if (*text == '&')
      fputs("&amp;", stdout);
    else
      putchar(*text);
  }
  printf("</%s>\n", element);
}

static void print_size(const char *element, unsigned long long bytes) {
  printf("<%s>%llu MiB</%s>\n", element, smi_mib(bytes), element);
}

static void print_memory(const nvmlMemory_v2_t *memory) {
  puts("<fb_memory_usage>");
  print_size("total", memory->total);
  print_size("reserved", memory->reserved);
  print_size("used", memory->used);
  print_size("free", memory->free);
  puts("</fb_memory_usage>");
}

static void print_processes(const struct smi_device *device) {
  puts("<processes>");
  for (unsigned i = 0; i < device->process_count; i++) {
    puts("<process_info>");
    printf("<pid>%u</pid>\n<type>C</type>\n", device->processes[i].pid);
    print_text("process_name", smi_process_name(device->processes[i].pid));
    print_size("used_memory", device->processes[i].usedGpuMemory);
    puts("</process_info>");
  }
  puts("</processes>");
}

static void print_device(const struct smi_device *device) {
  printf("<gpu id=\"%s\">\n", device->pci.busId);
  print_text("product_name", device->name);
  print_text("uuid", device->uuid);
  printf("<minor_number>%u</minor_number>\n", device->minor_number);
  print_memory(&device->memory);
  printf("<utilization>\n<gpu_util>%u %%</gpu_util>\n<memory_util>%u %%</memory_util>\n</utilization>\n",
         device->utilization.gpu, device->utilization.memory);
  print_processes(device);
  puts("</gpu>");
}

void smi_print_xml(const struct smi_report *report) {
  puts("<?xml version=\"1.0\" ?>\n<nvidia_smi_log>");
  print_text("driver_version", report->driver_version);
  printf("<cuda_version>%d.%d</cuda_version>\n", report->cuda_version / 1000, report->cuda_version % 1000 / 10);
  printf("<attached_gpus>%u</attached_gpus>\n", report->count);
  for (unsigned i = 0; i < report->count; i++)
    print_device(&report->devices[i]);
  puts("</nvidia_smi_log>");
}
