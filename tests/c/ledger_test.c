#include "cases.h"
#include "check.h"
#include "memory/ledger.h"
#include "memory/ledger_totals.h"

#include <pthread.h>
#include <string.h>

#define UNIT (8ULL << 20) /* so that all is shown at once */
#define LIMIT_BYTES (1000000 * UNIT)
#define RESERVES(ledger, device, bytes, limit_bytes)                                                                   \
  (ledger_reserve(&(ledger), device, bytes, (uint64_t[]){limit_bytes}).used_bytes != LEDGER_FULL)

static struct vgpu_usage usage;
static struct ledger_own own[VGPU_MAX_PROCESSES];
static bool dead[VGPU_MAX_PROCESSES];

static pthread_mutex_t file = PTHREAD_MUTEX_INITIALIZER;
static int calls;
static bool fails;
static void *fails_at; /* this file alone */

/* A NULL context is `usage`. */
static char *place(void *context, size_t at) {
  return (char *)(context != NULL ? context : &usage) + at;
}

static int reach_file(void *context) {
  (void)context;
  return 0;
}

static bool may_write_file(void *context) {
  (void)context;
  return true;
}

static bool read_file(void *context, int way, void *to, size_t size, size_t at) {
  (void)way;
  pthread_mutex_lock(&file);
  memcpy(to, place(context, at), size);
  calls++;
  pthread_mutex_unlock(&file);
  return !fails;
}

static bool write_file(void *context, int way, const void *from, size_t size, size_t at) {
  (void)way;
  bool written = !fails || (fails_at != NULL && fails_at != context);
  pthread_mutex_lock(&file);
  if (written)
    memcpy(place(context, at), from, size);
  calls++;
  pthread_mutex_unlock(&file);
  return written;
}

static bool is_live(void *context, int slot) {
  if (dead[slot])
    memset(place(context, offsetof(struct vgpu_usage, processes[slot])), 0, sizeof(struct vgpu_process_usage));
  return !dead[slot];
}

static const struct ledger_slots slots = {reach_file, may_write_file, read_file, write_file, is_live};

static struct ledger ledger_of(int slot) {
  if (usage.slots_used <= (uint32_t)slot)
    usage.slots_used = (uint32_t)slot + 1;
  return (struct ledger){.own = &own[slot], .slots = &slots, .own_slot = slot};
}

/* The driver says what it holds while nothing is under way. Returns the most of it that is not counted as allocated. */
static uint64_t correct(const struct ledger *ledger, uint64_t driver_bytes, enum ledger_cause cause,
                        uint64_t answered_bytes) {
  struct ledger_snapshot before = ledger_snapshot(ledger, 0);
  return ledger_correct(ledger, 0, &before, driver_bytes, cause, answered_bytes).most_bytes;
}

static void start_over(void) {
  memset(&usage, 0, sizeof usage);
  memset(own, 0, sizeof own);
  memset(dead, 0, sizeof dead);
}

static void check_sizes(void) {
  const uint64_t mib = 1 << 20;
  CHECK(ledger_driver_size(1) == 2 * mib && ledger_driver_size(2 * mib) == 2 * mib, "a block");
  CHECK(ledger_driver_size(2 * mib + 1) == 4 * mib, "whole blocks");
  CHECK(ledger_driver_size(UINT64_MAX) == UINT64_MAX, "no overflow");
}

static void check_limit(void) {
  start_over();
  struct ledger a = ledger_of(0), b = ledger_of(1);
  CHECK(RESERVES(a, 0, 600000 * UNIT, LIMIT_BYTES), "fits");
  CHECK(!RESERVES(b, 0, 400000 * UNIT + 1, LIMIT_BYTES), "one byte too many");
  CHECK(RESERVES(b, 0, 400000 * UNIT, LIMIT_BYTES), "the last byte");
  CHECK(RESERVES(b, 1, LIMIT_BYTES, LIMIT_BYTES), "another device is another account");
  CHECK(!RESERVES(b, 0, UINT64_MAX, LIMIT_BYTES), "no overflow");
  CHECK(ledger_used(&a, 0) == LIMIT_BYTES, "used %llu", (unsigned long long)ledger_used(&a, 0));
  ledger_settle(&b, 0, 400000 * UNIT, 300000 * UNIT);
  CHECK(ledger_used(&a, 0) == 900000 * UNIT, "used %llu", (unsigned long long)ledger_used(&a, 0));
  ledger_release(&b, 0, 1ULL << 60);
  CHECK(ledger_used(&a, 0) == 600000 * UNIT, "never below zero");
}

static void check_death(void) {
  start_over();
  struct ledger a = ledger_of(0), b = ledger_of(1);
  CHECK(RESERVES(a, 0, LIMIT_BYTES, LIMIT_BYTES), "fits");
  CHECK(!RESERVES(b, 0, 1, LIMIT_BYTES), "full");
  dead[0] = true;
  CHECK(ledger_used(&b, 0) == 0, "the dead hold nothing");
  CHECK(RESERVES(b, 0, LIMIT_BYTES, LIMIT_BYTES), "what they held is free");
}

static void check_overhead(void) {
  start_over();
  struct ledger a = ledger_of(0);
  ledger_add(&a, 0, 1000 * UNIT);
  correct(&a, 5000 * UNIT, LEDGER_LOOKED, 0);
  CHECK(ledger_used(&a, 0) == 5000 * UNIT, "what the driver holds");
  correct(&a, 10 * UNIT, LEDGER_LOOKED, 0);
  CHECK(ledger_used(&a, 0) == 1000 * UNIT, "what is reserved counts even before the driver has it");
}

/* A reservation that is not allocated yet does not hide a context. */
static void check_pending(void) {
  start_over();
  struct ledger a = ledger_of(0);
  correct(&a, 500 * UNIT, LEDGER_LOOKED, 0);
  CHECK(RESERVES(a, 0, 300 * UNIT, LIMIT_BYTES), "fits");
  correct(&a, 500 * UNIT, LEDGER_LOOKED, 0);
  CHECK(ledger_used(&a, 0) == 800 * UNIT, "before: %llu", (unsigned long long)ledger_used(&a, 0));
  correct(&a, 800 * UNIT, LEDGER_LOOKED, 0);
  CHECK(ledger_used(&a, 0) == 800 * UNIT, "taken: %llu", (unsigned long long)ledger_used(&a, 0));
  ledger_settle(&a, 0, 300 * UNIT, 300 * UNIT);
  CHECK(ledger_used(&a, 0) == 800 * UNIT, "after: %llu", (unsigned long long)ledger_used(&a, 0));
}

/* Managed memory is counted from the start and may come to the device later: neither hides a context nor counts twice.
 */
static void check_managed(void) {
  start_over();
  struct ledger a = ledger_of(0);
  correct(&a, 500 * UNIT, LEDGER_LOOKED, 0);
  ledger_add(&a, 0, 2000 * UNIT);
  ledger_add_managed(&a, 0, 2000 * UNIT);
  correct(&a, 500 * UNIT, LEDGER_LOOKED, 0);
  CHECK(ledger_used(&a, 0) == 2500 * UNIT, "untouched: %llu", (unsigned long long)ledger_used(&a, 0));
  correct(&a, 2500 * UNIT, LEDGER_LOOKED, 0);
  CHECK(ledger_used(&a, 0) == 2500 * UNIT, "touched: %llu", (unsigned long long)ledger_used(&a, 0));
  ledger_release(&a, 0, 2000 * UNIT);
  ledger_release_managed(&a, 0, 2000 * UNIT);
  correct(&a, 500 * UNIT, LEDGER_LOOKED, 0);
  CHECK(ledger_used(&a, 0) == 500 * UNIT, "freed: %llu", (unsigned long long)ledger_used(&a, 0));
}

/* A context's memory is overhead, also where untouched managed memory leaves open what the driver's figure means. */
static void check_contexts(void) {
  start_over();
  struct ledger a = ledger_of(0);
  ledger_add(&a, 0, 2000 * UNIT);
  ledger_add_managed(&a, 0, 2000 * UNIT);
  CHECK(correct(&a, 500 * UNIT, LEDGER_LOOKED, 0) == 500 * UNIT, "at most all of it is overhead");
  CHECK(ledger_used(&a, 0) == 2000 * UNIT, "or none: %llu", (unsigned long long)ledger_used(&a, 0));
  ledger_add_context(&a, 0, 500 * UNIT);
  correct(&a, 500 * UNIT, LEDGER_LOOKED, 0);
  CHECK(ledger_used(&a, 0) == 2500 * UNIT, "made: %llu", (unsigned long long)ledger_used(&a, 0));
  CHECK(usage.processes[0].devices[0].context_bytes == 500 * UNIT, "shown");
  correct(&a, 100 * UNIT, LEDGER_LOOKED, 0);
  CHECK(ledger_used(&a, 0) == 2100 * UNIT, "never more than the driver holds: %llu",
        (unsigned long long)ledger_used(&a, 0));
  ledger_release_context(&a, 0, 500 * UNIT);
  correct(&a, 0, LEDGER_LOOKED, 0);
  CHECK(ledger_used(&a, 0) == 2000 * UNIT && usage.processes[0].devices[0].context_bytes == 0, "gone");
}

/* Memory that the driver took for a reservation is overhead before the reservation goes: it is never uncounted. */
static void check_made(void) {
  start_over();
  struct ledger a = ledger_of(0), b = ledger_of(1);
  CHECK(RESERVES(a, 0, LIMIT_BYTES, LIMIT_BYTES), "fits");
  correct(&a, LIMIT_BYTES, LEDGER_MADE, LIMIT_BYTES);
  CHECK(!RESERVES(b, 0, 1, LIMIT_BYTES), "counted twice for a moment");
  ledger_settle(&a, 0, LIMIT_BYTES, 0);
  CHECK(ledger_used(&a, 0) == LIMIT_BYTES, "once: %llu", (unsigned long long)ledger_used(&a, 0));
  CHECK(!RESERVES(b, 0, 1, LIMIT_BYTES), "still counted");

  start_over();
  ledger_add(&a, 0, 3000 * UNIT);
  ledger_add_managed(&a, 0, 3000 * UNIT);
  CHECK(RESERVES(a, 0, 2000 * UNIT, LIMIT_BYTES), "fits");
  correct(&a, 2000 * UNIT, LEDGER_MADE, 2000 * UNIT);
  ledger_settle(&a, 0, 2000 * UNIT, 0);
  CHECK(ledger_used(&a, 0) == 5000 * UNIT, "is not taken for managed memory: %llu",
        (unsigned long long)ledger_used(&a, 0));
}

static void check_damage(void) {
  start_over();
  struct ledger a = ledger_of(3);
  memset(&usage, 0xff, sizeof usage);
  CHECK(ledger_used(&a, 0) == UINT64_MAX, "sums saturate");
  CHECK(!RESERVES(a, 0, 1, LIMIT_BYTES), "and refuse");
  memset(&usage, 0, sizeof usage);
  CHECK(RESERVES(a, 0, LIMIT_BYTES, LIMIT_BYTES), "fits");
  ledger_settle(&a, 0, LIMIT_BYTES, LIMIT_BYTES);
  memset(&usage, 0, sizeof usage);
  CHECK(!RESERVES(a, 0, 1, LIMIT_BYTES), "what is wiped from the file still counts");
}

/* A damaged slot of another process is in nobody's way, and right again once its owner has looked. */
static void check_repair(void) {
  start_over();
  struct ledger a = ledger_of(0), b = ledger_of(1);
  own[0].most_bytes[0] = own[1].most_bytes[0] = 2 * LIMIT_BYTES;
  ledger_add(&a, 0, 600000 * UNIT);
  memset(&usage.processes[0], 0xee, sizeof usage.processes[0]);
  CHECK(RESERVES(b, 0, 400000 * UNIT, LIMIT_BYTES), "what cannot be does not count");
  ledger_settle(&b, 0, 400000 * UNIT, 0);
  usage.processes[0].devices[0] = (struct vgpu_device_usage){.counted_bytes = LIMIT_BYTES};
  CHECK(!RESERVES(b, 0, 1, LIMIT_BYTES), "what can be does");
  memset(&usage, 0, 16);
  own[0].usage.shares_memory = 1;
  correct(&a, 600000 * UNIT, LEDGER_LOOKED, 0);
  CHECK(usage.processes[0].shares_memory == 1, "the whole slot");
  CHECK(RESERVES(b, 0, 400000 * UNIT, LIMIT_BYTES) && !RESERVES(b, 0, 1, LIMIT_BYTES), "repaired");
  CHECK(usage.magic == VGPU_USAGE_MAGIC && usage.abi_version == VGPU_ABI_VERSION && usage.slots_used > 0, "the header");
}

static void check_without_a_slot(void) {
  start_over();
  struct ledger a = ledger_of(0), b = {.own = &own[1], .slots = &slots, .own_slot = -1};
  CHECK(RESERVES(a, 0, 600000 * UNIT, LIMIT_BYTES), "fits");
  CHECK(!RESERVES(b, 0, 400000 * UNIT + 1, LIMIT_BYTES), "sees the others");
  CHECK(RESERVES(b, 0, 400000 * UNIT, LIMIT_BYTES) && !RESERVES(b, 0, 1, LIMIT_BYTES), "and itself");
}

/* Such as PyTorch makes. At each level it is a write and a look to reserve, and a write to release; the driver's
 * answer, which is what was expected, need not be shown. One that fails is. */
static void check_large(void) {
  const uint64_t bytes = 10 * LEDGER_BLOCK_BYTES;
  start_over();
  struct ledger a = ledger_of(0);
  const struct vgpu_device_usage *shown = &usage.processes[0].devices[0];
  calls = 0;
  CHECK(RESERVES(a, 0, bytes, LIMIT_BYTES), "fits");
  ledger_settle(&a, 0, bytes, bytes);
  CHECK(shown->allocated_bytes == bytes && shown->counted_bytes == bytes, "is shown");
  ledger_release(&a, 0, bytes);
  CHECK(shown->allocated_bytes == 0 && shown->counted_bytes == 0, "is shown no more");
  CHECK(calls <= 3, "%d system calls", calls);
  CHECK(RESERVES(a, 0, bytes, LIMIT_BYTES), "fits");
  ledger_settle(&a, 0, bytes, 0);
  CHECK(shown->allocated_bytes == 0 && shown->counted_bytes == bytes, "stays reserved, and is not allocated");
}

/* Small allocations reserve a block each, and share it. They draw on what counts already; the others see two blocks too
 * many at the most, and none where that is all that is left. */
static void check_small(void) {
  const uint64_t block = LEDGER_BLOCK_BYTES, small = 512;
  start_over();
  struct ledger a = ledger_of(0), b = ledger_of(1);
  calls = 0;
  for (int i = 0; i < 1000; i++) {
    CHECK(RESERVES(a, 0, block, LIMIT_BYTES), "fits");
    ledger_settle(&a, 0, block, small);
  }
  CHECK(calls <= 6, "%d system calls", calls); /* of two requests that were not covered */
  CHECK(ledger_used(&a, 0) == 1000 * small, "exact here: %llu", (unsigned long long)ledger_used(&a, 0));
  uint64_t seen = ledger_used(&b, 0);
  CHECK(seen >= 1000 * small && seen <= 1000 * small + 2 * block, "%llu elsewhere", (unsigned long long)seen);
  ledger_release(&a, 0, 1000 * small);
  CHECK(ledger_used(&b, 0) <= 2 * block, "released: %llu", (unsigned long long)ledger_used(&b, 0));

  start_over();
  a = ledger_of(0);
  b = ledger_of(1);
  CHECK(RESERVES(b, 0, LIMIT_BYTES - 2 * block, LIMIT_BYTES), "fits");
  CHECK(RESERVES(a, 0, small, LIMIT_BYTES) && RESERVES(a, 0, 2 * block - small, LIMIT_BYTES), "to the last byte");
  CHECK(!RESERVES(a, 0, 1, LIMIT_BYTES) && !RESERVES(b, 0, 1, LIMIT_BYTES), "and none beyond");
}

/* Memory that the driver took without a reservation is shown, but is no grant to be used again. */
static void check_unreserved(void) {
  start_over();
  struct ledger a = ledger_of(0), b = ledger_of(1);
  CHECK(RESERVES(a, 0, UNIT, LIMIT_BYTES) && RESERVES(b, 0, LIMIT_BYTES - UNIT, LIMIT_BYTES), "fits");
  ledger_add(&a, 0, UNIT);
  ledger_settle(&a, 0, UNIT, 0);
  CHECK(ledger_used(&b, 0) >= LIMIT_BYTES, "counts");
  CHECK(!RESERVES(a, 0, UNIT, LIMIT_BYTES), "full");
}

/* The limit has been lowered: what counts already is no reason to hand it out. */
static void check_lowered_limit(void) {
  start_over();
  struct ledger a = ledger_of(0);
  CHECK(RESERVES(a, 0, LEDGER_BLOCK_BYTES + 1, LIMIT_BYTES), "shows two blocks");
  CHECK(!RESERVES(a, 0, 1, LEDGER_BLOCK_BYTES + 1), "one byte too many");
  CHECK(RESERVES(a, 0, 1, LEDGER_BLOCK_BYTES + 2), "the last byte");
}

/* Where the others cannot be seen, or do not see this process, nothing is granted under a limit. */
static void check_without_the_file(void) {
  start_over();
  struct ledger a = ledger_of(0);
  fails = true;
  CHECK(!RESERVES(a, 0, 1, LIMIT_BYTES), "nothing");
  CHECK(RESERVES(a, 0, 1, VGPU_NO_MEMORY_LIMIT), "without a limit");
  fails = false;
  CHECK(ledger_used(&a, 0) == 1, "used %llu", (unsigned long long)ledger_used(&a, 0));
  CHECK(RESERVES(a, 0, LIMIT_BYTES - 1, LIMIT_BYTES), "all of it again");
}

static void check_huge_requests(void) {
  start_over();
  struct ledger a = ledger_of(0);
  ledger_add(&a, 0, 1000 * UNIT);
  CHECK(!RESERVES(a, 0, UINT64_MAX, VGPU_NO_MEMORY_LIMIT), "no device has that much");
  CHECK(ledger_used(&a, 0) == 1000 * UNIT, "nothing wraps around");
}

/* Many threads, each a process with a slot of its own: together never past the limit, and nothing left over. */
#define THREADS 8
#define ROUNDS 20000

static uint64_t held;

static void *allocate_and_free(void *argument) {
  int slot = (int)(intptr_t)argument;
  struct ledger ledger = {.own = &own[slot], .slots = &slots, .own_slot = slot};
  unsigned seed = (unsigned)slot;
  for (int i = 0; i < ROUNDS; i++) {
    uint64_t bytes = (uint64_t)rand_r(&seed) % (LIMIT_BYTES / 3);
    if (!RESERVES(ledger, 0, bytes, LIMIT_BYTES))
      continue;
    ledger_settle(&ledger, 0, bytes, bytes);
    uint64_t now = __atomic_add_fetch(&held, bytes, __ATOMIC_SEQ_CST);
    CHECK(now <= LIMIT_BYTES, "%llu held", (unsigned long long)now);
    __atomic_sub_fetch(&held, bytes, __ATOMIC_SEQ_CST);
    ledger_release(&ledger, 0, bytes);
  }
  return NULL;
}

static void check_concurrency(void) {
  start_over();
  ledger_of(THREADS - 1);
  pthread_t threads[THREADS];
  for (intptr_t i = 0; i < THREADS; i++)
    CHECK(pthread_create(&threads[i], NULL, allocate_and_free, (void *)i) == 0, "thread");
  for (int i = 0; i < THREADS; i++)
    pthread_join(threads[i], NULL);
  struct ledger ledger = ledger_of(0);
  CHECK(ledger_used(&ledger, 0) == 0, "%llu left over", (unsigned long long)ledger_used(&ledger, 0));
}

/* A share within another one, as many levels as there can be, and devices that have other numbers there. */
static struct vgpu_usage above_usage[VGPU_MAX_LEVELS - 1];

/* Processes whose first levels are files of their own have different shares there. */
static struct ledger *nest(struct ledger levels[VGPU_MAX_LEVELS], int count, int slot) {
  levels[0] = ledger_of(slot);
  for (int i = 1; i < count; i++) {
    above_usage[i - 1].slots_used = THREADS;
    levels[i] = (struct ledger){&own[slot], &slots, &above_usage[i - 1], slot, i, NULL};
    levels[i - 1].above = &levels[i];
    for (int device = 0; device < VGPU_MAX_DEVICES; device++)
      own[slot].levels[i].numbers[device] = (device + i) % VGPU_MAX_DEVICES;
  }
  return &levels[0];
}

static bool reserves(const struct ledger *ledger, uint64_t bytes, const uint64_t limits_bytes[VGPU_MAX_LEVELS]) {
  return ledger_reserve(ledger, 0, bytes, limits_bytes).used_bytes != LEDGER_FULL;
}

static void check_each_level_refuses(void) {
  for (int refusing = 0; refusing < VGPU_MAX_LEVELS; refusing++) {
    uint64_t limits_bytes[VGPU_MAX_LEVELS];
    struct ledger levels[VGPU_MAX_LEVELS];
    start_over();
    memset(above_usage, 0, sizeof above_usage);
    struct ledger *ledger = nest(levels, VGPU_MAX_LEVELS, 0);
    for (int i = 0; i < VGPU_MAX_LEVELS; i++)
      limits_bytes[i] = i == refusing ? 10 * UNIT : LIMIT_BYTES;
    struct ledger_room room = ledger_reserve(ledger, 0, 4 * UNIT, limits_bytes);
    CHECK(room.used_bytes == 4 * UNIT && room.left_bytes == 6 * UNIT, "%d: %llu left", refusing,
          (unsigned long long)room.left_bytes);
    ledger_settle(ledger, 0, 4 * UNIT, 4 * UNIT);
    CHECK(!reserves(ledger, 6 * UNIT + 1, limits_bytes), "%d refuses", refusing);
    for (int i = 0; i < VGPU_MAX_LEVELS; i++) {
      uint64_t used_bytes = ledger_used(&levels[i], 0), shown_bytes = 4 * UNIT;
      if (i > 0)
        shown_bytes = above_usage[i - 1].processes[0].devices[i].counted_bytes;
      CHECK(used_bytes == 4 * UNIT && shown_bytes == 4 * UNIT, "%d: taken back at %d", refusing, i);
    }
    CHECK(reserves(ledger, 6 * UNIT, limits_bytes), "%d: the last byte", refusing);
  }
}

/* Above its own level a process keeps what it has released for the next time, which makes no call there: a small part
 * of the limit, and less of it the more processes there are. What it holds is never less than what it shows. */
static void check_kept_above(void) {
  const uint64_t bytes = 10 * LEDGER_BLOCK_BYTES, most_bytes = 18 * LEDGER_BLOCK_BYTES;
  const uint64_t limits_bytes[VGPU_MAX_LEVELS] = {LIMIT_BYTES, THREADS * 64 * most_bytes, LIMIT_BYTES};
  const struct vgpu_device_usage *shown = &usage.processes[0].devices[0];
  const struct vgpu_device_usage *above = &above_usage[0].processes[0].devices[1];
  struct ledger levels[VGPU_MAX_LEVELS], beside[VGPU_MAX_LEVELS];
  start_over();
  memset(above_usage, 0, sizeof above_usage);
  struct ledger *ledger = nest(levels, 3, 0);
  for (int i = 0; i < 10; i++) {
    calls = 0;
    CHECK(reserves(ledger, bytes, limits_bytes), "fits");
    ledger_settle(ledger, 0, bytes, bytes);
    CHECK(shown->counted_bytes == bytes && above->counted_bytes == bytes, "is shown");
    ledger_release(ledger, 0, bytes);
    CHECK(shown->counted_bytes == 0 && above->counted_bytes == bytes, "is kept above alone");
    CHECK(i == 0 || calls <= 3, "%d system calls", calls);
  }
  CHECK(ledger_used(&levels[1], 0) == 0, "exact here");

  struct ledger *other = nest(beside, 3, 1);
  const uint64_t left_bytes = limits_bytes[1] - bytes;
  CHECK(!reserves(other, left_bytes + 1, limits_bytes) && reserves(other, left_bytes, limits_bytes), "all but that");
  CHECK(reserves(ledger, bytes, limits_bytes) && !reserves(ledger, 1, limits_bytes), "which is still granted");
  ledger_settle(ledger, 0, bytes, 0);
  ledger_settle(other, 0, left_bytes, 0);

  CHECK(reserves(ledger, most_bytes + 1, limits_bytes), "fits");
  ledger_settle(ledger, 0, most_bytes + 1, most_bytes + 1);
  ledger_release(ledger, 0, most_bytes + 1);
  CHECK(above->counted_bytes == 0, "more than that is not kept: %llu", (unsigned long long)above->counted_bytes);

  const uint64_t less_bytes[VGPU_MAX_LEVELS] = {LIMIT_BYTES, THREADS * 64 * (bytes - 1), LIMIT_BYTES};
  CHECK(reserves(ledger, bytes, less_bytes), "fits");
  ledger_settle(ledger, 0, bytes, bytes);
  ledger_release(ledger, 0, bytes);
  CHECK(above->counted_bytes == 0, "no more than its part of the limit: %llu",
        (unsigned long long)above->counted_bytes);
}

/* A limit above that has been lowered holds for what is kept there as well. */
static void check_kept_under_a_lowered_limit(void) {
  const uint64_t bytes = 10 * LEDGER_BLOCK_BYTES;
  const uint64_t before_bytes[VGPU_MAX_LEVELS] = {LIMIT_BYTES, LIMIT_BYTES},
                 after_bytes[VGPU_MAX_LEVELS] = {LIMIT_BYTES, bytes - 1};
  struct ledger levels[VGPU_MAX_LEVELS];
  start_over();
  memset(above_usage, 0, sizeof above_usage);
  struct ledger *ledger = nest(levels, 2, 0);
  CHECK(reserves(ledger, bytes, before_bytes), "fits");
  ledger_settle(ledger, 0, bytes, bytes);
  ledger_release(ledger, 0, bytes);
  CHECK(above_usage[0].processes[0].devices[1].counted_bytes == bytes, "kept");
  CHECK(!reserves(ledger, bytes, after_bytes) && reserves(ledger, bytes - 1, after_bytes), "to the last byte");
}

/* A file that cannot be written leaves the others as they were. */
static void check_level_that_fails(void) {
  const uint64_t limits_bytes[VGPU_MAX_LEVELS] = {LIMIT_BYTES, LIMIT_BYTES, LIMIT_BYTES, LIMIT_BYTES};
  for (int failing = 0; failing < VGPU_MAX_LEVELS; failing++) {
    struct ledger levels[VGPU_MAX_LEVELS];
    start_over();
    memset(above_usage, 0, sizeof above_usage);
    struct ledger *ledger = nest(levels, VGPU_MAX_LEVELS, 0);
    CHECK(reserves(ledger, UNIT, limits_bytes), "fits");
    fails_at = levels[failing].context;
    fails = true;
    CHECK(!reserves(ledger, UNIT, limits_bytes), "%d fails", failing);
    fails = false;
    for (int i = 0; i < VGPU_MAX_LEVELS; i++) {
      const struct vgpu_usage *file = i == 0 ? &usage : &above_usage[i - 1];
      CHECK(file->processes[0].devices[i].counted_bytes == UNIT, "%d fails: %d", failing, i);
    }
    CHECK(reserves(ledger, UNIT, limits_bytes), "%d works again", failing);
    CHECK(ledger_used(ledger->above, 0) == 2 * UNIT, "%d works again", failing);
  }
  fails_at = NULL;
}

static void check_dead_at_all_levels(void) {
  struct ledger first[VGPU_MAX_LEVELS], second[VGPU_MAX_LEVELS];
  const uint64_t limits_bytes[VGPU_MAX_LEVELS] = {LIMIT_BYTES, 10 * UNIT, 12 * UNIT, 14 * UNIT};
  start_over();
  memset(above_usage, 0, sizeof above_usage);
  struct ledger *dies = nest(first, VGPU_MAX_LEVELS, 0), *lives = nest(second, VGPU_MAX_LEVELS, 1);
  CHECK(reserves(dies, 8 * UNIT, limits_bytes) && !reserves(lives, 8 * UNIT, limits_bytes), "one of them");
  dead[0] = true;
  CHECK(reserves(lives, 10 * UNIT, limits_bytes), "takes nothing with it");
}

/* Half of the threads are of one share, half of another; together they have less than both. */
static uint64_t held_at[2], held_above;
static const uint64_t nested_limits_bytes[VGPU_MAX_LEVELS] = {LIMIT_BYTES, LIMIT_BYTES / 3 * 2, LIMIT_BYTES};

static void holds(uint64_t *sum_bytes, uint64_t bytes, uint64_t limit_bytes) {
  uint64_t now_bytes = __atomic_add_fetch(sum_bytes, bytes, __ATOMIC_SEQ_CST);
  CHECK(now_bytes <= limit_bytes, "%llu held", (unsigned long long)now_bytes);
}

static void *allocate_in_share(void *argument) {
  int slot = (int)(intptr_t)argument, share = slot % 2;
  struct ledger above = {&own[slot], &slots, NULL, slot, 2, NULL};
  struct ledger middle = {&own[slot], &slots, &above_usage[share], slot, 1, &above};
  struct ledger ledger = {&own[slot], &slots, &above_usage[2], slot, 0, &middle};
  unsigned seed = (unsigned)slot;
  for (int i = 0; i < ROUNDS / 4; i++) {
    uint64_t bytes = (uint64_t)rand_r(&seed) % (LIMIT_BYTES / 3);
    if (!reserves(&ledger, bytes, nested_limits_bytes))
      continue;
    ledger_settle(&ledger, 0, bytes, bytes);
    holds(&held_at[share], bytes, nested_limits_bytes[1]);
    holds(&held_above, bytes, LIMIT_BYTES);
    __atomic_sub_fetch(&held_at[share], bytes, __ATOMIC_SEQ_CST);
    __atomic_sub_fetch(&held_above, bytes, __ATOMIC_SEQ_CST);
    ledger_release(&ledger, 0, bytes);
  }
  return NULL;
}

static void check_shares_at_once(void) {
  start_over();
  memset(above_usage, 0, sizeof above_usage);
  for (int i = 0; i < VGPU_MAX_LEVELS - 1; i++)
    above_usage[i].slots_used = THREADS;
  struct ledger outermost = ledger_of(THREADS - 1);
  pthread_t threads[THREADS];
  for (intptr_t i = 0; i < THREADS; i++)
    CHECK(pthread_create(&threads[i], NULL, allocate_in_share, (void *)i) == 0, "thread");
  for (int i = 0; i < THREADS; i++)
    pthread_join(threads[i], NULL);
  CHECK(ledger_used(&outermost, 0) == 0, "left over");
}

int main(int count, char **names) {
  cases_begin(count, names);
  CASE("sizes") check_sizes();
  CASE("limit") check_limit();
  CASE("death") check_death();
  CASE("overhead") check_overhead();
  CASE("pending") check_pending();
  CASE("managed") check_managed();
  CASE("contexts") check_contexts();
  CASE("made") check_made();
  CASE("damage") check_damage();
  CASE("repair") check_repair();
  CASE("without a slot") check_without_a_slot();
  CASE("large") check_large();
  CASE("small") check_small();
  CASE("unreserved") check_unreserved();
  CASE("lowered limit") check_lowered_limit();
  CASE("without the file") check_without_the_file();
  CASE("huge requests") check_huge_requests();
  CASE("concurrency") check_concurrency();
  CASE("each level refuses") check_each_level_refuses();
  CASE("kept above") check_kept_above();
  CASE("kept under a lowered limit") check_kept_under_a_lowered_limit();
  CASE("a level that fails") check_level_that_fails();
  CASE("dead at all levels") check_dead_at_all_levels();
  CASE("shares at once") check_shares_at_once();
  return cases_end();
}
