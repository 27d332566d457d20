/*
 * Feeds a fuzz target with mutated inputs: for machines without clang, whose libFuzzer runs the same targets.
 *
 *   PROGRAM SECONDS SEED
 *
 * The seed of each input is printed when the target ends the program, and `PROGRAM 0 SEED` repeats that one input.
 */
#include "fuzz.h"

#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define MOST_BYTES 512

static unsigned long long current_seed;

static uint64_t number(uint64_t *state) {
  *state ^= *state << 13;
  *state ^= *state >> 7;
  *state ^= *state << 17;
  return *state;
}

static uint8_t some_byte(uint64_t *state) {
  size_t letters = strlen(fuzz_alphabet);
  bool known = letters > 0 && number(state) % 4 != 0;
  return known ? (uint8_t)fuzz_alphabet[number(state) % letters] : (uint8_t)number(state);
}

static size_t mutate(uint8_t *data, size_t size, uint64_t *state) {
  size_t at = size > 0 ? number(state) % size : 0;
  switch (number(state) % 6) {
  case 0: /* insert */
    if (size == MOST_BYTES)
      return size;
    memmove(data + at + 1, data + at, size - at);
    data[at] = some_byte(state);
    return size + 1;
  case 1: /* remove */
    if (size == 0)
      return size;
    memmove(data + at, data + at + 1, size - at - 1);
    return size - 1;
  case 2: /* repeat a part */
    if (size == 0 || size > MOST_BYTES / 2)
      return size;
    memcpy(data + size, data, size);
    return size + size;
  case 3: /* flip a bit */
    if (size > 0)
      data[at] ^= (uint8_t)(1u << number(state) % 8);
    return size;
  case 4: /* cut */
    return at;
  default:
    if (size > 0)
      data[at] = some_byte(state);
    return size;
  }
}

static void feed(unsigned long long seed) {
  uint64_t state = (uint64_t)seed * 0x9e3779b97f4a7c15ULL + 1;
  size_t inputs = 0;
  while (fuzz_inputs[inputs].data != NULL)
    inputs++;
  uint8_t buffer[MOST_BYTES];
  const struct fuzz_input *first = &fuzz_inputs[number(&state) % inputs];
  size_t size = first->size;
  memcpy(buffer, first->data, size);
  for (uint64_t mutations = number(&state) % 12; mutations > 0; mutations--)
    size = mutate(buffer, size, &state);
  uint8_t *exact = malloc(size + 1); /* so that a sanitizer sees a read past the end */
  if (exact == NULL)
    abort();
  memcpy(exact, buffer, size);
  exact = realloc(exact, size > 0 ? size : 1);
  current_seed = seed;
  LLVMFuzzerTestOneInput(exact, size);
  free(exact);
}

static void say_which(void) {
  if (current_seed != 0)
    fprintf(stderr, "input %llu\n", current_seed);
}

void __asan_on_error(void);
void __asan_on_error(void) {
  say_which();
}

int main(int argument_count, char **arguments) {
  if (argument_count != 3)
    return 2;
  unsigned long long seed = strtoull(arguments[2], NULL, 10), fed = 0;
  time_t end = time(NULL) + atoi(arguments[1]);
  atexit(say_which);
  do
    feed(seed + fed++);
  while (time(NULL) < end);
  current_seed = 0;
  printf("%llu inputs\n", fed);
  return 0;
}
