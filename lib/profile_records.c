#include "profile_records.h"

#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#define SHARED_SLOT (PROFILE_TOTALS_SLOTS - 1)
#define CALM 1024 /* records that are dropped before a thread that found no chunk looks again */

static struct profile_disk *disk;
static uint64_t taken;                             /* chunks, so far */
static uint32_t slot_owners[PROFILE_TOTALS_SLOTS]; /* thread numbers; 0: free */

static __thread struct {
  uint32_t number;
  uint32_t used; /* in the chunk; what the file says of it may not be ours */
  struct profile_chunk *chunk;
  struct profile_total *totals;
  bool shares_totals;
  uint32_t to_drop;
} thread;

static uint32_t thread_number(void) {
  if (thread.number == 0)
    thread.number = (uint32_t)syscall(SYS_gettid);
  return thread.number;
}

/* A thread does not say when it ends. What it had is anybody's then. */
static bool is_gone(uint32_t number) {
  return syscall(SYS_tgkill, getpid(), number, 0) != 0;
}

static bool claim(uint32_t *owner) {
  uint32_t number = __atomic_load_n(owner, __ATOMIC_RELAXED);
  return (number == 0 || is_gone(number)) &&
         __atomic_compare_exchange_n(owner, &number, thread_number(), false, __ATOMIC_ACQUIRE, __ATOMIC_RELAXED);
}

void profile_records_use(struct profile_disk *used) {
  memset(slot_owners, 0, sizeof slot_owners);
  memset(&thread, 0, sizeof thread);
  taken = 0;
  disk = used;
}

/* The file is read at any time: each word is stored whole, and in no more than one step. */
static void set(uint64_t *word, uint64_t value) {
  __atomic_store_n(word, value, __ATOMIC_RELAXED);
}

/* Field by field: a wider load of what has just been stored in parts would have to wait for it. */
static void copy(struct profile_record *to, const struct profile_record *from) {
  set(&to->start_ns, from->start_ns);
  set(&to->duration_ns, from->duration_ns);
  set(&to->value, from->value);
  __atomic_store_n(&to->stream, from->stream, __ATOMIC_RELAXED);
  __atomic_store_n(&to->api, from->api, __ATOMIC_RELAXED);
  __atomic_store_n(&to->device, from->device, __ATOMIC_RELAXED);
  __atomic_store_n(&to->kind_and_copy, from->kind_and_copy, __ATOMIC_RELAXED);
}

static void drop(uint64_t records) {
  __atomic_add_fetch(&disk->file->header.dropped, records, __ATOMIC_RELAXED);
}

/* A reader who meets it half way through finds another serial than before. */
static void empty(struct profile_chunk *chunk, uint64_t serial) {
  uint32_t used = __atomic_load_n(&chunk->used, __ATOMIC_ACQUIRE);
  if (chunk->serial != 0)
    drop(used < PROFILE_CHUNK_RECORDS ? used : PROFILE_CHUNK_RECORDS);
  __atomic_exchange_n(&chunk->serial, 0, __ATOMIC_SEQ_CST); /* before anything in it changes */
  __atomic_store_n(&chunk->thread, thread_number(), __ATOMIC_RELAXED);
  __atomic_store_n(&chunk->used, 0, __ATOMIC_RELAXED);
  __atomic_store_n(&chunk->serial, serial, __ATOMIC_RELEASE);
}

/* The oldest that no living thread is filling. */
static struct profile_chunk *take(void) {
  uint32_t most = __atomic_load_n(&disk->chunk_count, __ATOMIC_RELAXED);
  for (uint32_t tries = 0; tries <= most; tries++) {
    uint64_t place = __atomic_fetch_add(&taken, 1, __ATOMIC_RELAXED);
    struct profile_chunk *chunk = profile_disk_chunk(disk, place);
    if (chunk == NULL)
      return NULL;
    if (!claim(&chunk->open))
      continue;
    empty(chunk, place + 1);
    return chunk;
  }
  return NULL;
}

static bool next_chunk(void) {
  if (thread.chunk != NULL)
    __atomic_store_n(&thread.chunk->open, 0, __ATOMIC_RELEASE);
  thread.used = 0;
  thread.chunk = take();
  return thread.chunk != NULL;
}

void profile_records_store(const struct profile_record *records, uint32_t count) {
  bool full = thread.chunk == NULL || thread.used + count > PROFILE_CHUNK_RECORDS;
  if (__builtin_expect(full, 0) && (thread.to_drop > 0 || !next_chunk())) {
    thread.to_drop = thread.to_drop > 0 ? thread.to_drop - 1 : CALM;
    drop(count);
    return;
  }
  for (uint32_t i = 0; i < count; i++)
    copy(&thread.chunk->records[thread.used + i], &records[i]);
  thread.used += count;
  __atomic_store_n(&thread.chunk->used, thread.used, __ATOMIC_RELEASE);
}

/* ---- totals ---------------------------------------------------------------------------------------------------- */

static void find_slot(void) {
  uint32_t slot = 0;
  while (slot < SHARED_SLOT && !claim(&slot_owners[slot]))
    slot++;
  thread.shares_totals = slot == SHARED_SLOT;
  thread.totals = disk->file->totals[slot];
}

/* Without the price of an atomic addition: the word has one writer. */
static void add(uint64_t *word, uint64_t value) {
  set(word, __atomic_load_n(word, __ATOMIC_RELAXED) + value);
}

static void count_alone(struct profile_total *total, const struct profile_result *result) {
  add(&total->calls, 1);
  add(&total->failed, result->failed);
  add(&total->bytes, result->failed ? 0 : result->bytes);
  add(&total->duration_ns, result->duration_ns);
  if (result->duration_ns > __atomic_load_n(&total->longest_ns, __ATOMIC_RELAXED))
    set(&total->longest_ns, result->duration_ns);
}

static void count_with_others(struct profile_total *total, const struct profile_result *result) {
  __atomic_add_fetch(&total->calls, 1, __ATOMIC_RELAXED);
  __atomic_add_fetch(&total->failed, result->failed, __ATOMIC_RELAXED);
  __atomic_add_fetch(&total->bytes, result->failed ? 0 : result->bytes, __ATOMIC_RELAXED);
  __atomic_add_fetch(&total->duration_ns, result->duration_ns, __ATOMIC_RELAXED);
  uint64_t longest = __atomic_load_n(&total->longest_ns, __ATOMIC_RELAXED);
  while (longest < result->duration_ns &&
         !__atomic_compare_exchange_n(&total->longest_ns, &longest, result->duration_ns, false, __ATOMIC_RELAXED,
                                      __ATOMIC_RELAXED))
    continue;
}

void profile_records_count(const struct profile_result *result) {
  if (__builtin_expect(thread.totals == NULL, 0))
    find_slot();
  struct profile_total *total = &thread.totals[result->api];
  if (__builtin_expect(thread.shares_totals, 0))
    count_with_others(total, result);
  else
    count_alone(total, result);
}
