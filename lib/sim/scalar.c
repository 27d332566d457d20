#include "scalar.h"

#include <ctype.h>
#include <string.h>

bool scalar_parse(const char *text, uint64_t scale, uint64_t *value) {
  uint64_t total = 0;
  bool any = false;
  for (; isdigit((unsigned char)*text); text++, any = true) {
    if (total > (UINT64_MAX / scale - 9) / 10)
      return false;
    total = total * 10 + (uint64_t)(*text - '0');
  }
  total *= scale;
  if (any && *text == '.') {
    text++;
    any = false;
    for (; isdigit((unsigned char)*text); text++, any = true) {
      if (scale % 10 != 0 && *text != '0')
        return false;
      scale /= 10;
      if (__builtin_add_overflow(total, scale * (uint64_t)(*text - '0'), &total))
        return false;
    }
  }
  *value = total;
  return any && *text == '\0';
}

bool scalar_parse_version(const char *text, uint64_t *value) {
  size_t major_digits = strspn(text, "0123456789");
  const char *minor = text + major_digits + 1;
  if (major_digits < 1 || major_digits > 2 || text[major_digits] != '.' || !isdigit((unsigned char)minor[0]) ||
      minor[1] != '\0')
    return false;
  *value = 0;
  for (size_t i = 0; i < major_digits; i++)
    *value = *value * 10 + (uint64_t)(text[i] - '0');
  *value = *value * 10 + (uint64_t)(minor[0] - '0');
  return true;
}

bool scalar_parse_uuid(const char *text, char *uuid, size_t size) {
  static const char shape[] = "GPU-xxxxxxxx-xxxx-xxxx-xxxx-xxxxxxxxxxxx";
  const size_t prefix = strlen("GPU-");
  if (strlen(text) != sizeof shape - 1 || size < sizeof shape)
    return false;
  if (strncmp(text, "GPU-", prefix) != 0 && strncmp(text, "MIG-", prefix) != 0)
    return false;
  memcpy(uuid, text, prefix);
  for (size_t i = prefix; i < sizeof shape; i++) {
    if (shape[i] == 'x' ? !isxdigit((unsigned char)text[i]) : text[i] != shape[i])
      return false;
    uuid[i] = shape[i] == 'x' ? (char)tolower((unsigned char)text[i]) : shape[i];
  }
  return true;
}

bool scalar_parse_duration(const char *text, uint64_t *duration_ns) {
  static const struct {
    const char *unit;
    uint64_t ns;
  } units[] = {{"ns", 1}, {"us", NS_PER_US}, {"ms", NS_PER_MS}, {"s", NS_PER_S}};
  char number[24];
  size_t length = strspn(text, "0123456789.");
  if (length == 0 || length >= sizeof number)
    return false;
  memcpy(number, text, length);
  number[length] = '\0';
  for (size_t i = 0; i < sizeof units / sizeof *units; i++)
    if (strcmp(text + length, units[i].unit) == 0)
      return scalar_parse(number, units[i].ns, duration_ns);
  return false;
}

static unsigned digit_value(char c) {
  if (c >= '0' && c <= '9')
    return (unsigned)(c - '0');
  c |= 0x20;
  return c >= 'a' && c <= 'f' ? (unsigned)(c - 'a') + 10 : 16;
}

const char *scalar_digits(const char *text, unsigned base, unsigned *value) {
  const char *end = text;
  *value = 0;
  for (; end - text < 8 && digit_value(*end) < base; end++)
    *value = *value * base + digit_value(*end);
  return end > text ? end : NULL;
}
