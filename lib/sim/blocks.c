#include "blocks.h"

#include <stdlib.h>

#define UNIT 512
#define UNITS (DEVICE_PAGE / UNIT)
#define WORDS (UNITS / 64)

struct block {
  struct region *region;
  struct block *next, **link;
  unsigned free_units;
  uint64_t used[WORDS];  /* a bit per unit */
  uint64_t first[WORDS]; /* the first unit of each allocation */
};

static bool bit(const uint64_t *bits, size_t i) {
  return bits[i / 64] >> (i % 64) & 1;
}
static void set_bit(uint64_t *bits, size_t i) {
  bits[i / 64] |= 1ULL << (i % 64);
}
static void clear_bit(uint64_t *bits, size_t i) {
  bits[i / 64] &= ~(1ULL << (i % 64));
}

bool block_add(struct block **list, struct region *region) {
  struct block *block = calloc(1, sizeof *block);
  if (!block)
    return false;
  block->region = region;
  block->free_units = UNITS;
  block->next = *list;
  block->link = list;
  if (*list)
    (*list)->link = &block->next;
  *list = block;
  region->block = block;
  return true;
}

void block_delete(struct block *block) {
  *block->link = block->next;
  if (block->next)
    block->next->link = block->link;
  free(block);
}

/* The first run of free units that is long enough; UNITS when there is none. */
static size_t find_run(const struct block *block, size_t length) {
  size_t run = 0;
  for (size_t i = 0; i < UNITS; i++) {
    if (i % 64 == 0 && block->used[i / 64] == UINT64_MAX) { /* skip a full word */
      run = 0;
      i += 63;
      continue;
    }
    run = bit(block->used, i) ? 0 : run + 1;
    if (run == length)
      return i + 1 - length;
  }
  return UNITS;
}

uintptr_t block_allocate(struct block **list, size_t size) {
  size_t units = round_up(size, UNIT) / UNIT;
  for (struct block *block = *list; block; block = block->next) {
    size_t start = block->free_units >= units ? find_run(block, units) : UNITS;
    if (start == UNITS)
      continue;
    set_bit(block->first, start);
    for (size_t i = start; i < start + units; i++)
      set_bit(block->used, i);
    block->free_units -= (unsigned)units;
    return block->region->base + start * UNIT;
  }
  return 0;
}

static size_t end_of(const struct block *block, size_t start) {
  size_t end = start + 1;
  while (end < UNITS && bit(block->used, end) && !bit(block->first, end))
    end++;
  return end;
}

bool block_find(const struct block *block, uintptr_t address, uintptr_t *base, size_t *size) {
  size_t unit = (address - block->region->base) / UNIT;
  if (!bit(block->used, unit))
    return false;
  while (!bit(block->first, unit))
    unit--;
  *base = block->region->base + unit * UNIT;
  *size = (end_of(block, unit) - unit) * UNIT;
  return true;
}

bool block_free(struct block *block, uintptr_t base) {
  size_t start = (base - block->region->base) / UNIT;
  size_t end = end_of(block, start);
  clear_bit(block->first, start);
  for (size_t i = start; i < end; i++)
    clear_bit(block->used, i);
  block->free_units += (unsigned)(end - start);
  return block->free_units == UNITS;
}
