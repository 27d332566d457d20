/* Shared by everything: where the compiler places things, the lesser and the greater of two, and what is left of one.
 *
 * HOT marks what every launch and every allocation from a pool goes through. Between two of them a driver runs through
 * thousands of cache lines of its own, so that what one costs is not its instructions, but how many pages and lines of
 * ours have to come back. So such functions lie next to each other, and such variables too; what they seldom do lies
 * elsewhere.
 */
#pragma once

#include <stdint.h>

#define HOT __attribute__((hot))
#define COLD __attribute__((cold, noinline))
#define HOT_DATA __attribute__((section("hot_data")))

/* For what only the linker refers to: lld drops it without the second one, which older versions of gcc do not know. */
#ifdef __clang__
#define KEPT __attribute__((used, retain))
#else
#define KEPT __attribute__((used))
#endif

static inline int64_t min(int64_t a, int64_t b) {
  return a < b ? a : b;
}

static inline int64_t max(int64_t a, int64_t b) {
  return a > b ? a : b;
}

static inline uint64_t subtract_saturating(uint64_t a, uint64_t b) {
  return a > b ? a - b : 0;
}
