/* Device memory that one process made and others use. One process pays for it, as on a card: who made it, and when that
 * gives it up, the one that imported it last. */
#pragma once

#include "common.h"

struct shared_memory {
  unsigned device;
  uint64_t size_bytes;
  uint64_t charged_bytes;
};

/* Makes memory of this process known to others; 0 when there is no room for it. */
uint64_t shared_memory_new(struct shared_memory memory);

/* False when it is gone, or our own and must not be. */
enum shared_by { SHARED_BY_OTHERS, SHARED_BY_ANYONE };
bool shared_memory_import(uint64_t id, enum shared_by by, struct shared_memory *memory);
void shared_memory_end_import(uint64_t id);

/* Its maker gives it up: true when somebody else pays from now on. */
bool shared_memory_give_up(uint64_t id);
