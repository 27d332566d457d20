#include "nvml_faults.h"

#include <string.h>

#include "config.h"
#include "state_file.h"

FILE *faults_open(void) {
  char path[4096 + 16];
  snprintf(path, sizeof path, "%s.faults", state_file_path());
  return fopen(path, "re");
}

bool faults_read_line(FILE *file, char line[FAULT_LINE_SIZE]) {
  return fgets(line, FAULT_LINE_SIZE, file) && strchr(line, '\n');
}

bool fault_names(const char *line, const char *what, const char *uuid) {
  char fault[8], named[64];
  return sscanf(line, "%7s %63s", fault, named) == 2 && strcmp(fault, what) == 0 && strcasecmp(named, uuid) == 0;
}

bool fault_is_lost(unsigned device) {
  const char *uuid = sim_config.devices[device].uuid;
  char line[FAULT_LINE_SIZE];
  bool lost = false;
  FILE *file = faults_open();
  if (!file)
    return false;
  while (faults_read_line(file, line))
    lost = (lost || fault_names(line, "lost", uuid)) && !fault_names(line, "back", uuid);
  fclose(file);
  return lost;
}
