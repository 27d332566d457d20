/* Small allocations share blocks of 2 MiB, in units of 512 bytes. */
#pragma once

#include "regions.h"

#define SMALL_LIMIT MIB /* a request above this gets memory of its own */

struct block;

/* Takes memory from the blocks of a list; 0 when none has room. */
uintptr_t block_allocate(struct block **list, size_t size);

/* Makes the region a block of the list. False when there is no memory. */
bool block_add(struct block **list, struct region *region);

/* The start and size of the allocation that holds an address; false when none does. */
bool block_find(const struct block *block, uintptr_t address, uintptr_t *base, size_t *size);

/* Gives an allocation back by its start. Returns whether the block is empty now. */
bool block_free(struct block *block, uintptr_t base);

/* Takes an empty block, or one that goes with its context, out of its list. */
void block_delete(struct block *block);
