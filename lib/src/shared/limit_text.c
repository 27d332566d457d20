#include "shared/limit_text.h"

#include <string.h>

#define MAX_FRACTION_DIGITS 9

/* A non-negative decimal number, as whole + fraction / scale. */
struct decimal {
  uint64_t whole;
  uint64_t fraction;
  uint64_t scale; /* 10^digits of the fraction */
};

static bool is_digit(char c) {
  return c >= '0' && c <= '9';
}

static char lower(char c) {
  return c >= 'A' && c <= 'Z' ? (char)(c - 'A' + 'a') : c;
}

/* Own parsing, because strtoull accepts signs and octal and strtod depends on the locale. */
static bool parse_decimal(const char **cursor, struct decimal *number) {
  const char *p = *cursor;
  int digits = 0;
  *number = (struct decimal){.scale = 1};
  for (; is_digit(*p); p++, digits++) {
    if (__builtin_mul_overflow(number->whole, (uint64_t)10, &number->whole) ||
        __builtin_add_overflow(number->whole, (uint64_t)(*p - '0'), &number->whole))
      return false;
  }
  if (*p == '.') {
    int fraction_digits = 0;
    for (p++; is_digit(*p); p++, digits++) {
      if (++fraction_digits > MAX_FRACTION_DIGITS)
        return false;
      number->fraction = number->fraction * 10 + (uint64_t)(*p - '0');
      number->scale *= 10;
    }
  }
  *cursor = p;
  return digits > 0;
}

/* number * multiplier / divisor, rounded down; false outside 1 to 2^64 - 2. The caller keeps the product of the whole
 * part and the multiplier below 2^71, so that 128 bits hold it. */
static bool scale(struct decimal number, uint64_t multiplier, uint64_t divisor, uint64_t *result) {
  unsigned __int128 numerator = ((unsigned __int128)number.whole * number.scale + number.fraction) * multiplier;
  unsigned __int128 value = numerator / ((unsigned __int128)number.scale * divisor);
  if (value == 0 || value >= UINT64_MAX)
    return false;
  *result = (uint64_t)value;
  return true;
}

/* An optional k, m, g or t, then an optional i, then an optional b: all are binary multiples, as in docker. */
static bool parse_unit(const char **cursor, uint64_t *multiplier) {
  static const char letters[] = "kmgt";
  const char *p = *cursor;
  *multiplier = 1;
  const char *letter = *p != '\0' ? strchr(letters, lower(*p)) : NULL;
  if (letter != NULL) {
    *multiplier = 1ULL << (10 * (letter - letters + 1));
    p++;
    if (lower(*p) == 'i')
      p++;
  }
  if (lower(*p) == 'b')
    p++;
  *cursor = p;
  return *skip_blanks(p) == '\0';
}

bool limits_parse_memory(const char *text, uint64_t device_bytes, uint64_t *memory_bytes) {
  struct decimal number;
  const char *p = skip_blanks(text);
  if (!parse_decimal(&p, &number))
    return false;
  p = skip_blanks(p);
  if (*p == '%') {
    bool over = number.whole > 100 || (number.whole == 100 && number.fraction > 0);
    return !over && *skip_blanks(p + 1) == '\0' && scale(number, device_bytes, 100, memory_bytes);
  }
  uint64_t multiplier;
  if (!parse_unit(&p, &multiplier) || number.whole > UINT64_MAX / multiplier)
    return false;
  return scale(number, multiplier, 1, memory_bytes);
}

bool limits_parse_sm(const char *text, uint32_t *sm_percent) {
  const char *p = skip_blanks(text);
  uint32_t value = 0;
  if (!is_digit(*p))
    return false;
  for (; is_digit(*p); p++) {
    value = value * 10 + (uint32_t)(*p - '0');
    if (value > 100)
      return false;
  }
  p = skip_blanks(p);
  if (*p == '%')
    p = skip_blanks(p + 1);
  if (*p != '\0')
    return false;
  *sm_percent = value == 0 ? VGPU_NO_SM_LIMIT : value;
  return true;
}
