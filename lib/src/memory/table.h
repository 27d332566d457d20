/*
 * A map from the driver's names for memory (pointers, handles) to what was counted for them. Safe for many threads;
 * its cost does not grow with its size. No lock is held when a call returns.
 */
#pragma once

#include <pthread.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define TABLE_SHARDS 64

struct table_entry {
  uint64_t key; /* never 0 */
  uint64_t bytes;
  void *owner;
  void *context; /* the context that it goes with; NULL: none */
  int kind;      /* the caller's own */
};

struct table {
  struct table_shard {
    pthread_mutex_t lock;
    struct table_entry *entries; /* open addressing with linear probing */
    size_t capacity;             /* 0 or a power of two */
    size_t count;
  } shards[TABLE_SHARDS];
};

#define TABLE_INITIALIZER                                                                                              \
  {                                                                                                                    \
    .shards = {[0 ... TABLE_SHARDS - 1] = {.lock = PTHREAD_MUTEX_INITIALIZER}}                                         \
  }

/* False without memory for it. An entry of the same key is replaced. */
bool table_put(struct table *table, struct table_entry entry);

/* Removes the entry of the key; false when there is none. */
bool table_take(struct table *table, uint64_t key, struct table_entry *entry);

/* Adds the bytes of the entry to those of its key, or puts it there; `bytes` are all then. False without memory for it.
 */
bool table_add(struct table *table, struct table_entry entry, uint64_t *bytes);

/* Takes bytes from the key's, and the entry away with the last; `left` is the entry then. False when it has fewer. */
bool table_subtract(struct table *table, uint64_t key, uint64_t bytes, struct table_entry *left);

/* False when it is certain that there is no entry of the key. */
bool table_may_have(struct table *table, uint64_t key);

/* Copies the entry of the key. */
bool table_get(struct table *table, uint64_t key, struct table_entry *entry);

/* Removes all entries of a context, and calls `removed` for each, with a lock held: it must not come back here. */
void table_take_context(struct table *table, void *context, void (*removed)(const struct table_entry *entry));

/* In a forked child, where another thread may have held a lock: starts empty. Its old content is not freed. */
void table_abandon(struct table *table);
