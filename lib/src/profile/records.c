#include "profile/records.h"

#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#define SHARED_SLOT (PROFILE_TOTALS_SLOTS - 1)
#define CALM 1024 /* records that are dropped before a thread that found no chunk looks again */

static struct profile_disk *disk;
static uint64_t taken;                             /* chunks, so far */
static uint32_t slot_owners[PROFILE_TOTALS_SLOTS]; /* thread numbers; 0: free */

__thread struct profile_place profile_place;
static __thread uint32_t number; /* the thread's */
static __thread uint32_t to_drop;

static uint32_t thread_number(void) {
  if (number == 0)
    number = (uint32_t)syscall(SYS_gettid);
  return number;
}

/* A thread does not announce its end. Its chunk is then free for any other. */
static bool is_gone(uint32_t other) {
  return syscall(SYS_tgkill, getpid(), other, 0) != 0;
}

static bool claim(uint32_t *owner) {
  uint32_t other = __atomic_load_n(owner, __ATOMIC_RELAXED);
  return (other == 0 || is_gone(other)) &&
         __atomic_compare_exchange_n(owner, &other, thread_number(), false, __ATOMIC_ACQUIRE, __ATOMIC_RELAXED);
}

void profile_records_use(struct profile_disk *used) {
  memset(slot_owners, 0, sizeof slot_owners);
  profile_place = (struct profile_place){0};
  number = 0;
  to_drop = 0;
  taken = 0;
  disk = used;
}

static void drop(uint64_t records) {
  __atomic_add_fetch(&disk->file->header.dropped, records, __ATOMIC_RELAXED);
}

/* A reader that meets it half way through finds another serial than before. */
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
  if (profile_place.chunk != NULL)
    __atomic_store_n(&profile_place.chunk->open, 0, __ATOMIC_RELEASE);
  profile_place.chunk = take();
  profile_place.left = profile_place.chunk != NULL ? PROFILE_CHUNK_RECORDS : 0;
  return profile_place.chunk != NULL;
}

bool profile_records_take_chunk(uint32_t records) {
  if (to_drop == 0 && next_chunk())
    return true;
  to_drop = to_drop > 0 ? to_drop - 1 : CALM;
  drop(records);
  return false;
}

/* ---- totals ---------------------------------------------------------------------------------------------------- */

void profile_records_find_slot(void) {
  uint32_t slot = 0;
  while (slot < SHARED_SLOT && !claim(&slot_owners[slot]))
    slot++;
  profile_place.shares_totals = slot == SHARED_SLOT;
  profile_place.totals = disk->file->totals[slot];
  profile_place.launches = disk->file->launches[slot];
}

/* By this thread, or by others that share the word. */
void profile_records_count_longest(uint64_t *longest_ns, uint64_t duration_ns) {
  uint64_t longest = __atomic_load_n(longest_ns, __ATOMIC_RELAXED);
  while (longest < duration_ns &&
         !__atomic_compare_exchange_n(longest_ns, &longest, duration_ns, false, __ATOMIC_RELAXED, __ATOMIC_RELAXED))
    continue;
}
