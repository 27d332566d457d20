#include "memory/table.h"

#include "base/compiler.h"

#include <stdlib.h>
#include <string.h>

#define FIRST_CAPACITY 64

static uint64_t hash(uint64_t key) {
  key *= 0x9e3779b97f4a7c15ULL; /* the driver's pointers differ in their middle bits */
  return key ^ (key >> 32);
}

static struct table_shard *shard_of(struct table *table, uint64_t key) {
  return &table->shards[hash(key) >> 58 & (TABLE_SHARDS - 1)];
}

/* The place of the key, or the empty place where it belongs. */
static size_t locate(const struct table_shard *shard, uint64_t key) {
  size_t mask = shard->capacity - 1;
  size_t place = hash(key) & mask;
  while (shard->entries[place].key != 0 && shard->entries[place].key != key)
    place = (place + 1) & mask;
  return place;
}

/* Keeps at least a quarter of the places empty. */
static bool make_room(struct table_shard *shard) {
  if (shard->count * 4 < shard->capacity * 3)
    return true;
  struct table_shard grown = {.capacity = shard->capacity ? shard->capacity * 2 : FIRST_CAPACITY};
  grown.entries = calloc(grown.capacity, sizeof *grown.entries);
  if (grown.entries == NULL)
    return false;
  for (size_t i = 0; i < shard->capacity; i++)
    if (shard->entries[i].key != 0)
      grown.entries[locate(&grown, shard->entries[i].key)] = shard->entries[i];
  free(shard->entries);
  shard->entries = grown.entries;
  shard->capacity = grown.capacity;
  return true;
}

/* Moves later entries of the same run up, so that no search stops short at the gap. */
static void close_gap(struct table_shard *shard, size_t gap) {
  size_t mask = shard->capacity - 1;
  for (size_t next = (gap + 1) & mask; shard->entries[next].key != 0; next = (next + 1) & mask) {
    size_t home = hash(shard->entries[next].key) & mask;
    if (((next - home) & mask) >= ((next - gap) & mask)) {
      shard->entries[gap] = shard->entries[next];
      gap = next;
    }
  }
  shard->entries[gap] = (struct table_entry){0};
}

static struct table_entry *occupy(struct table_shard *shard, size_t place, uint64_t key) {
  if (shard->entries[place].key == 0) {
    shard->entries[place].key = key;
    __atomic_store_n(&shard->count, shard->count + 1, __ATOMIC_RELAXED);
  }
  return &shard->entries[place];
}

bool table_put(struct table *table, struct table_entry entry) {
  struct table_shard *shard = shard_of(table, entry.key);
  pthread_mutex_lock(&shard->lock);
  bool room = entry.key != 0 && make_room(shard);
  if (room) {
    size_t place = locate(shard, entry.key);
    *occupy(shard, place, entry.key) = entry;
  }
  pthread_mutex_unlock(&shard->lock);
  return room;
}

static void remove_at(struct table_shard *shard, size_t place) {
  close_gap(shard, place);
  __atomic_store_n(&shard->count, shard->count - 1, __ATOMIC_RELAXED);
}

bool table_add(struct table *table, struct table_entry entry, uint64_t *bytes) {
  struct table_shard *shard = shard_of(table, entry.key);
  pthread_mutex_lock(&shard->lock);
  bool room = entry.key != 0 && make_room(shard);
  if (room) {
    struct table_entry *found = occupy(shard, locate(shard, entry.key), entry.key);
    entry.bytes += found->bytes;
    *found = entry;
    *bytes = entry.bytes;
  }
  pthread_mutex_unlock(&shard->lock);
  return room;
}

/* Without the lock: a thread that knows a key has it from a call that put it here before. */
static bool is_empty(const struct table_shard *shard) {
  return __atomic_load_n(&shard->count, __ATOMIC_RELAXED) == 0;
}

HOT bool table_may_have(struct table *table, uint64_t key) {
  return !is_empty(shard_of(table, key));
}

HOT bool table_subtract(struct table *table, uint64_t key, uint64_t bytes, struct table_entry *left) {
  struct table_shard *shard = shard_of(table, key);
  if (is_empty(shard))
    return false;
  pthread_mutex_lock(&shard->lock);
  size_t place = key != 0 && shard->count > 0 ? locate(shard, key) : 0;
  bool enough = key != 0 && shard->count > 0 && shard->entries[place].bytes >= bytes;
  if (enough) {
    shard->entries[place].bytes -= bytes;
    *left = shard->entries[place];
    if (left->bytes == 0)
      remove_at(shard, place);
  }
  pthread_mutex_unlock(&shard->lock);
  return enough;
}

static HOT bool look_up(struct table *table, uint64_t key, struct table_entry *entry, bool remove) {
  struct table_shard *shard = shard_of(table, key);
  if (is_empty(shard))
    return false;
  pthread_mutex_lock(&shard->lock);
  bool found = false;
  if (key != 0 && shard->count > 0) {
    size_t place = locate(shard, key);
    found = shard->entries[place].key == key;
    if (found)
      *entry = shard->entries[place];
    if (found && remove)
      remove_at(shard, place);
  }
  pthread_mutex_unlock(&shard->lock);
  return found;
}

HOT bool table_take(struct table *table, uint64_t key, struct table_entry *entry) {
  return look_up(table, key, entry, true);
}

bool table_get(struct table *table, uint64_t key, struct table_entry *entry) {
  return look_up(table, key, entry, false);
}

void table_take_context(struct table *table, void *context, void (*removed)(const struct table_entry *entry)) {
  for (int i = 0; i < TABLE_SHARDS; i++) {
    struct table_shard *shard = &table->shards[i];
    pthread_mutex_lock(&shard->lock);
    for (size_t place = 0; place < shard->capacity; place++)
      while (shard->entries[place].key != 0 && shard->entries[place].context == context) {
        removed(&shard->entries[place]);
        remove_at(shard, place); /* which may bring another one here */
      }
    pthread_mutex_unlock(&shard->lock);
  }
}

void table_abandon(struct table *table) {
  for (int i = 0; i < TABLE_SHARDS; i++) {
    table->shards[i] = (struct table_shard){0};
    pthread_mutex_init(&table->shards[i].lock, NULL);
  }
}
