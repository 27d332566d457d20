/* The functions of a fuzz target, which fuzz_main.c calls. */
#pragma once

#include <stddef.h>
#include <stdint.h>

/* Inputs to begin with; the last has no data. */
struct fuzz_input {
  const char *data;
  size_t size;
};
extern const struct fuzz_input fuzz_inputs[];

/* Characters that make sense in an input; empty: all bytes alike. */
extern const char fuzz_alphabet[];

/* libFuzzer's name for it. */
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);
