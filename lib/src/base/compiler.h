/*
 * What every launch and every allocation from a pool goes through. Between two of them a driver runs through thousands
 * of cache lines of its own, so that what one costs is not its instructions, but how many pages and lines of ours have
 * to come back. So such functions lie next to each other, and such variables too; what they seldom do lies elsewhere.
 */
#ifndef VGPU_HOT_H
#define VGPU_HOT_H

#define HOT __attribute__((hot))
#define SELDOM __attribute__((cold, noinline))
#define HOT_DATA __attribute__((section("hot_data")))

/* For what only the linker refers to: lld drops it without the second one, which older versions of gcc do not know. */
#ifdef __clang__
#define KEPT __attribute__((used, retain))
#else
#define KEPT __attribute__((used))
#endif

#endif
