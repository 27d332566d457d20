/* Parses limits as people write them. It needs nothing but the C library, since Slurm's plugin is built with it too. */
#pragma once

#include "abi.h"

#include <stdbool.h>

static inline const char *skip_blanks(const char *text) {
  while (*text == ' ' || *text == '\t')
    text++;
  return text;
}

/* "2g", "1.5GiB", "1048576k", plain bytes, or "50%" of device_bytes, rounded down to a byte. The table of cases is
 * tests/limit_cases.tsv. */
bool limits_parse_memory(const char *text, uint64_t device_bytes, uint64_t *memory_bytes);

/* "50", "50%"; 0 and 100 mean none. */
bool limits_parse_sm(const char *text, uint32_t *sm_percent);
