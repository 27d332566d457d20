/* What the files of the turns share. */
#ifndef VGPU_TURNS_PARTS_H
#define VGPU_TURNS_PARTS_H

#include "claim.h"
#include "turns.h"

/* How old what we have seen may be where others are there; and where nobody is, as are what we know of a lock and what
 * others see of us. A look takes some microseconds. */
#define TURNS_LATELY_NS 200000LL
#define TURNS_KNOWN_NS 10000000LL

static inline int turns_holder_of(uint64_t lease) {
  return (int)(lease & 0xffff) - 1;
}

static inline int64_t turns_end_ns(uint64_t lease) {
  return (int64_t)(lease >> 16) * 1000;
}

static inline uint64_t turns_lease(int holder, int64_t end_ns) {
  return (uint64_t)(end_ns / 1000) << 16 | (uint64_t)(holder + 1);
}

/* Slices end at the same instants on all GPUs, so that programs whose kernels wait for each other across them find both
 * at once; and unevenly, so that the steps of a program do not keep time with them: multiples of the golden ratio are
 * spread over these. */
#define TURNS_UNEVEN_NS 4000000LL

static inline uint64_t turns_slice_number(int64_t now_ns) {
  return (uint64_t)(now_ns + TURNS_SLICE_NS / 2) / TURNS_SLICE_NS + 1;
}

static inline int64_t turns_slice_end_ns(int64_t now_ns) {
  uint64_t number = turns_slice_number(now_ns), part = (uint32_t)number * 2654435769U;
  return (int64_t)(number * TURNS_SLICE_NS + (part * TURNS_UNEVEN_NS >> 32));
}

/* turns_look.c, with the claim held: looks at the file; does another one have the turn; how many of those that wait go
 * before us. */
void turns_look(struct turns *turns, int64_t now_ns);
bool turns_another_has_it(const struct turns *turns, int64_t now_ns);
int turns_rank(const struct turns *turns, int64_t now_ns);

#endif
