/*
 * Stores the threads' records in the ring, and their totals. No lock: each thread has a place of its own. It
 * happens at every call, so that what it mostly takes is here.
 */
#pragma once

#include "base/compiler.h"
#include "profile/disk.h"

/* From now on records go there. NULL: nowhere. In a forked child, too, after that has given up its parent's. */
void profile_records_use(struct profile_disk *disk);

/* The place at which this thread stores, and what it is about to store. */
struct profile_place {
  struct profile_chunk *chunk;
  uint32_t left; /* records that the chunk has room for; what the file says of it may not be ours */
  bool shares_totals;
  struct profile_total *totals; /* NULL: not looked for yet */
  uint64_t *launches;           /* the same slot's */
  bool knows_device;
  uint8_t device; /* the current one */
};
extern __thread struct profile_place profile_place;

/* Takes another chunk; false when there is none, and those records count as dropped. */
COLD bool profile_records_take_chunk(uint32_t records);
COLD void profile_records_find_slot(void);

/* The file is read at any time: each word is stored whole, and in no more than one step. */
static inline void profile_set(uint64_t *word, uint64_t value) {
  __atomic_store_n(word, value, __ATOMIC_RELAXED);
}

static inline void profile_copy(struct profile_record *to, const struct profile_record *from) {
  profile_set(&to->start_ns, from->start_ns);
  profile_set(&to->duration_ns, from->duration_ns);
  profile_set(&to->value, from->value);
  __atomic_store_n(&to->stream, from->stream, __ATOMIC_RELAXED);
  __atomic_store_n(&to->api, from->api, __ATOMIC_RELAXED);
  __atomic_store_n(&to->device, from->device, __ATOMIC_RELAXED);
  __atomic_store_n(&to->kind_and_copy, from->kind_and_copy, __ATOMIC_RELAXED);
}

/* The place for one record, or for several that a reader is to find together; NULL when they are dropped. They count
 * once all of them are stored. Only while a disk is in use. */
static inline struct profile_record *profile_records_next(uint32_t count) {
  struct profile_place *place = &profile_place;
  if (__builtin_expect(place->left < count, 0) && !profile_records_take_chunk(count))
    return NULL;
  struct profile_record *next = &place->chunk->records[PROFILE_CHUNK_RECORDS - place->left];
  place->left -= count;
  return next;
}

static inline void profile_records_stored(void) {
  __atomic_store_n(&profile_place.chunk->used, PROFILE_CHUNK_RECORDS - profile_place.left, __ATOMIC_RELEASE);
}

static inline void profile_records_store(const struct profile_record *records, uint32_t count) {
  struct profile_record *next = profile_records_next(count);
  if (next == NULL)
    return;
  for (uint32_t i = 0; i < count; i++)
    profile_copy(&next[i], &records[i]);
  profile_records_stored();
}

/* Without the price of an atomic addition, unless the word has several writers. */
static inline void profile_add(uint64_t *word, uint64_t value) {
  if (__builtin_expect(profile_place.shares_totals, 0))
    __atomic_add_fetch(word, value, __ATOMIC_RELAXED);
  else
    profile_set(word, __atomic_load_n(word, __ATOMIC_RELAXED) + value);
}

/* The value of a span. */
static inline uint64_t profile_span_value(uint64_t own_ns, uint32_t launches) {
  return own_ns << 16 | launches;
}

COLD void profile_records_count_longest(uint64_t *longest_ns, uint64_t duration_ns);

/* A call in the totals, in two steps: its time is known last. */
static inline struct profile_total *profile_records_count(uint32_t api, bool failed, uint64_t bytes) {
  if (__builtin_expect(profile_place.totals == NULL, 0))
    profile_records_find_slot();
  struct profile_total *total = &profile_place.totals[api];
  profile_add(&total->calls, 1);
  if (failed)
    profile_add(&total->failed, 1);
  else if (bytes > 0)
    profile_add(&total->bytes, bytes);
  return total;
}

static inline void profile_records_count_time(struct profile_total *total, uint64_t duration_ns) {
  profile_add(&total->duration_ns, duration_ns);
  if (__builtin_expect(duration_ns > __atomic_load_n(&total->longest_ns, __ATOMIC_RELAXED), 0))
    profile_records_count_longest(&total->longest_ns, duration_ns);
}

/* A launch of a kernel. */
static inline void profile_records_count_launch(uint32_t kernel) {
  if (__builtin_expect(profile_place.launches == NULL, 0))
    profile_records_find_slot();
  profile_add(&profile_place.launches[kernel], 1);
}
