/* Whatever a limit says: it is refused, or it is a limit. */
#include "check.h"
#include "fuzz.h"
#include "shared/limits.h"

#include <ctype.h>
#include <string.h>

#define DEVICE_BYTES (80ULL << 30)

#define INPUT(text) {text, sizeof text - 1}
const struct fuzz_input fuzz_inputs[] = {INPUT("2g"),
                                         INPUT("1.5GiB"),
                                         INPUT("1048576k"),
                                         INPUT("50%"),
                                         INPUT(" 99.999999999 % "),
                                         INPUT("18446744073709551615"),
                                         INPUT("16777215.999999999t"),
                                         INPUT("100"),
                                         INPUT("force"),
                                         {NULL, 0}};
const char fuzz_alphabet[] = "0123456789.%kmgtibKMGTIB \t+-eE";

/* Blanks around it and the case of its letters make no difference. */
static void check_same(const char *text, bool good, uint64_t bytes) {
  char other[1100] = " \t";
  size_t length = strlen(text);
  for (size_t i = 0; i < length; i++)
    other[2 + i] = (char)toupper((unsigned char)text[i]);
  strcpy(other + 2 + length, "\t ");
  uint64_t other_bytes = 0;
  CHECK(limits_parse_memory(other, DEVICE_BYTES, &other_bytes) == good && other_bytes == bytes, "|%s|", text);
}

/* A longer number is no smaller limit. */
static void check_order(const char *text, uint64_t bytes) {
  char longer[1100];
  uint64_t more_bytes;
  snprintf(longer, sizeof longer, "1%s", text);
  if (isdigit((unsigned char)text[0]) && limits_parse_memory(longer, DEVICE_BYTES, &more_bytes))
    CHECK(more_bytes >= bytes, "|%s| is less than |%s|", longer, text);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
  char *text = calloc(1, size + 1);
  if (text == NULL || size > 1000) {
    free(text);
    return 0;
  }
  memcpy(text, data, size);
  uint64_t bytes = 0;
  uint32_t percent = 0, policy = 0;
  bool good = limits_parse_memory(text, DEVICE_BYTES, &bytes);
  CHECK(!good || (bytes > 0 && bytes < VGPU_NO_MEMORY_LIMIT), "|%s| is %llu", text, (unsigned long long)bytes);
  CHECK(!good || strchr(text, '%') == NULL || bytes <= DEVICE_BYTES, "|%s| is more than there is", text);
  check_same(text, good, bytes);
  if (good)
    check_order(text, bytes);
  if (limits_parse_sm(text, &percent))
    CHECK(percent >= 1 && percent <= 100, "|%s| is %u percent", text, percent);
  if (limits_parse_policy(text, &policy))
    CHECK(policy <= VGPU_SM_OFF, "|%s| is policy %u", text, policy);
  free(text);

  struct vgpu_limits file;
  memset(&file, size > 0 ? data[0] : 0, sizeof file);
  memcpy(&file, data, size < sizeof file ? size : sizeof file);
  for (int device = -1; device <= VGPU_MAX_DEVICES; device++) {
    struct limits limits = limits_from_file(&file, device);
    CHECK(limits.sm_percent >= 1 && limits.sm_percent <= 100, "%u percent", limits.sm_percent);
  }
  CHECK(limits_find_device(&file, "GPU-x") < VGPU_MAX_DEVICES, "past the end");
  limits_of_compute_in_file(&file);
  return 0;
}
