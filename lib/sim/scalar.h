/* Scalars of the configuration: text with a unit in the key becomes an exact integer. */
#pragma once

#include "common.h"

/* Digits with an optional fraction, times scale, exactly: "2.5" at scale 1000 is 2500. False when it is not such a
 * number, is finer than the scale, or does not fit. */
bool scalar_parse(const char *text, uint64_t scale, uint64_t *value);

/* "12.9" as 10 * major + minor. */
bool scalar_parse_version(const char *text, uint64_t *value);

/* "GPU-" and 8-4-4-4-12 hex digits; written back in lower case. */
bool scalar_parse_uuid(const char *text, char *uuid, size_t size);

/* A number and one of ns, us, ms, s: "50us". */
bool scalar_parse_duration(const char *text, uint64_t *duration_ns);

/* Reads digits of base 10 or 16, at most 8; the text behind them, or NULL when there are none. (strtoul and sscanf of a
 * new glibc would keep the driver out of images with an older one.) */
const char *scalar_digits(const char *text, unsigned base, unsigned *value);
