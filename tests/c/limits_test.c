/* Reads limit cases (kind, text between bars, result; tab separated) from the file named by the first argument. */
#include "cases.h"
#include "check.h"
#include "shared/limits.h"

#include <inttypes.h>
#include <string.h>

#define DEVICE_BYTES 8589934592ULL

static void check_memory(const char *text, const char *expected) {
  uint64_t bytes = 0;
  char answer[32] = "error";
  if (limits_parse_memory(text, DEVICE_BYTES, &bytes))
    snprintf(answer, sizeof answer, "%" PRIu64, bytes);
  CHECK(strcmp(answer, expected) == 0, "memory |%s| gave %s, not %s", text, answer, expected);
}

static void check_sm(const char *text, const char *expected) {
  uint32_t percent = 0;
  char answer[32] = "error";
  if (limits_parse_sm(text, &percent)) {
    if (percent == VGPU_NO_SM_LIMIT)
      snprintf(answer, sizeof answer, "none");
    else
      snprintf(answer, sizeof answer, "%" PRIu32, percent);
  }
  CHECK(strcmp(answer, expected) == 0, "sm |%s| gave %s, not %s", text, answer, expected);
}

static void check_table(const char *path) {
  FILE *file = fopen(path, "r");
  CHECK(file != NULL, "cannot open %s", path);
  char line[512];
  int cases = 0;
  while (fgets(line, sizeof line, file)) {
    char kind[16], text[256], expected[64];
    if (line[0] == '#')
      continue;
    CHECK(sscanf(line, "%15[^\t]\t|%255[^|]|\t%63s", kind, text, expected) == 3, "bad row: %s", line);
    if (strcmp(kind, "memory") == 0)
      check_memory(text, expected);
    else
      check_sm(text, expected);
    cases++;
  }
  fclose(file);
  CHECK(cases > 80, "only %d cases", cases);
}

static struct limits with(const char *name, const char *value, int device) {
  setenv(name, value, 1);
  struct limits limits = limits_from_environment(device, DEVICE_BYTES);
  return limits;
}

static void check_environment(void) {
  CHECK(!limits_in_environment(), "nothing is set");
  CHECK(with("WRAPPER_MAX_MEMORY", "1048576", 0).memory_bytes == 1048576, "cuda-wrapper's name");
  CHECK(with("ALNAIR_VGPU_COMPUTE_PERCENTILE", "30", 0).sm_percent == 30, "Alnair's name");
  CHECK(limits_in_environment() && limits_of_compute_in_environment(), "aliases count");
  CHECK(with("CUDA_DEVICE_MEMORY_LIMIT", "2g", 0).memory_bytes == 2ULL << 30, "all devices; before the alias");
  CHECK(with("CUDA_DEVICE_MEMORY_LIMIT_1", "1g", 1).memory_bytes == 1ULL << 30, "one device, before all");
  CHECK(with("CUDA_DEVICE_MEMORY_LIMIT_1", "1g", 0).memory_bytes == 2ULL << 30, "and that one only");
  CHECK(with("CUDA_DEVICE_MEMORY_LIMIT_1", "", 1).memory_bytes == 2ULL << 30, "empty is unset");
  CHECK(with("CUDA_DEVICE_MEMORY_LIMIT", "much", 0).memory_bytes == 0, "unreadable is never unlimited");
  CHECK(with("CUDA_DEVICE_SM_LIMIT", "fast", 0).sm_percent == 1, "unreadable is never unlimited");
  CHECK(with("CUDA_DEVICE_SM_LIMIT", "100", 0).sm_percent == VGPU_NO_SM_LIMIT, "100 is none");
}

static void check_file(void) {
  struct vgpu_limits file = {.magic = VGPU_LIMITS_MAGIC, .abi_version = VGPU_ABI_VERSION, .device_count = 1};
  snprintf(file.devices[0].uuid, sizeof file.devices[0].uuid, "GPU-a");
  file.devices[0].memory_limit_bytes = 5;
  file.devices[0].sm_limit_percent = 0;
  CHECK(limits_find_device(&file, "GPU-a") == 0 && limits_find_device(&file, "GPU-b") == -1, "by UUID");
  CHECK(limits_from_file(&file, 0).memory_bytes == 5 && limits_from_file(&file, 0).sm_percent == 1, "0 %% is damage");
  CHECK(limits_from_file(&file, -1).memory_bytes == 0, "not listed, not granted");
  file.device_count = 4000000000u;
  CHECK(limits_find_device(&file, "GPU-c") == -1, "a damaged count is bounded");
}

int main(int count, char **names) {
  cases_begin(count, names);
  CASE("table") check_table("../limit_cases.tsv");
  CASE("environment") check_environment();
  CASE("file") check_file();
  return cases_end();
}
