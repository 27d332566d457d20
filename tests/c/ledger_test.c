#include "ledger_files.h"

#define RESERVES(ledger, device, bytes, limit_bytes)                                                                   \
  (ledger_reserve(&(ledger), device, bytes, (uint64_t[]){limit_bytes}).used_bytes != LEDGER_FULL)

static void anew(void (*check)(void)) {
  start_over();
  check();
}

/* The driver says what it holds while nothing is under way. Returns the most of it that is not counted as allocated. */
static uint64_t correct(const struct ledger *ledger, uint64_t driver_bytes, enum ledger_cause cause,
                        uint64_t answered_bytes) {
  struct ledger_snapshot before = ledger_snapshot(ledger, 0);
  return ledger_correct(ledger, 0, &before, driver_bytes, cause, answered_bytes).most_bytes;
}

static void check_sizes(void) {
  const uint64_t mib = 1 << 20;
  CHECK(ledger_driver_size(1) == 2 * mib && ledger_driver_size(2 * mib) == 2 * mib, "a block");
  CHECK(ledger_driver_size(2 * mib + 1) == 4 * mib, "whole blocks");
  CHECK(ledger_driver_size(UINT64_MAX) == UINT64_MAX, "no overflow");
}

static void check_limit(void) {
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
  struct ledger a = ledger_of(0), b = ledger_of(1);
  CHECK(RESERVES(a, 0, LIMIT_BYTES, LIMIT_BYTES), "fits");
  CHECK(!RESERVES(b, 0, 1, LIMIT_BYTES), "full");
  dead[0] = true;
  CHECK(ledger_used(&b, 0) == 0, "the dead hold nothing");
  CHECK(RESERVES(b, 0, LIMIT_BYTES, LIMIT_BYTES), "what they held is free");
}

static void check_overhead(void) {
  struct ledger a = ledger_of(0);
  ledger_add(&a, 0, 1000 * UNIT);
  correct(&a, 5000 * UNIT, LEDGER_LOOKED, 0);
  CHECK(ledger_used(&a, 0) == 5000 * UNIT, "what the driver holds");
  correct(&a, 10 * UNIT, LEDGER_LOOKED, 0);
  CHECK(ledger_used(&a, 0) == 1000 * UNIT, "what is reserved counts even before the driver has it");
}

/* A reservation that is not allocated yet does not hide a context. */
static void check_pending(void) {
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

/* Memory that the driver took for a reservation is overhead in its place: it is never uncounted, nor counted twice. */
static void check_made(void) {
  struct ledger a = ledger_of(0), b = ledger_of(1);
  CHECK(RESERVES(a, 0, LIMIT_BYTES, LIMIT_BYTES), "fits");
  correct(&a, LIMIT_BYTES, LEDGER_MADE, LIMIT_BYTES);
  CHECK(ledger_used(&a, 0) == LIMIT_BYTES, "once: %llu", (unsigned long long)ledger_used(&a, 0));
  CHECK(!RESERVES(b, 0, 1, LIMIT_BYTES), "still counted");

  start_over();
  ledger_add(&a, 0, 3000 * UNIT);
  ledger_add_managed(&a, 0, 3000 * UNIT);
  CHECK(RESERVES(a, 0, 2000 * UNIT, LIMIT_BYTES), "fits");
  correct(&a, 2000 * UNIT, LEDGER_MADE, 2000 * UNIT);
  CHECK(ledger_used(&a, 0) == 5000 * UNIT, "is not taken for managed memory: %llu",
        (unsigned long long)ledger_used(&a, 0));
}

static void check_damage(void) {
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
  struct ledger a = ledger_of(0), b = {.own = &own[1], .slots = &slots, .own_slot = -1};
  CHECK(RESERVES(a, 0, 600000 * UNIT, LIMIT_BYTES), "fits");
  CHECK(!RESERVES(b, 0, 400000 * UNIT + 1, LIMIT_BYTES), "sees the others");
  CHECK(RESERVES(b, 0, 400000 * UNIT, LIMIT_BYTES) && !RESERVES(b, 0, 1, LIMIT_BYTES), "and itself");
}

/* Such as PyTorch makes. At each level it is a write and a look to reserve, and a write to release; the driver's
 * answer, which is what was expected, need not be shown. One that fails is. */
static void check_large(void) {
  const uint64_t bytes = 10 * LEDGER_BLOCK_BYTES;
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
  struct ledger a = ledger_of(0), b = ledger_of(1);
  calls = 0;
  for (int i = 0; i < 1000; i++) {
    CHECK(RESERVES(a, 0, block, LIMIT_BYTES), "fits");
    ledger_settle(&a, 0, block, small);
  }
  CHECK(calls <= 6, "%d system calls", calls); /* two of the requests were not covered */
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

/* All of them together show too much by no more than a 64th of the limit, which the others lack. */
static void check_small_of_many(void) {
  enum { PROCESSES = 64 };
  const uint64_t block = LEDGER_BLOCK_BYTES, limit_bytes = PROCESSES * 8 * block;
  struct ledger ledgers[PROCESSES];
  start_over();
  for (int i = PROCESSES - 1; i >= 0; i--) {
    ledgers[i] = ledger_of(i);
    CHECK(RESERVES(ledgers[i], 0, 3 * block, limit_bytes), "fits");
    ledger_settle(&ledgers[i], 0, 3 * block, 3 * block);
    ledger_release(&ledgers[i], 0, block);
    ledger_release(&ledgers[i], 0, block);
  }
  uint64_t most_bytes = PROCESSES * block + limit_bytes / 64;
  CHECK(ledger_used(&ledgers[0], 0) <= most_bytes, "%llu", (unsigned long long)ledger_used(&ledgers[0], 0));
}

/* Memory that the driver took without a reservation is shown, but is no grant to be used again. */
static void check_unreserved(void) {
  struct ledger a = ledger_of(0), b = ledger_of(1);
  CHECK(RESERVES(a, 0, UNIT, LIMIT_BYTES) && RESERVES(b, 0, LIMIT_BYTES - UNIT, LIMIT_BYTES), "fits");
  ledger_add(&a, 0, UNIT);
  ledger_settle(&a, 0, UNIT, 0);
  CHECK(ledger_used(&b, 0) >= LIMIT_BYTES, "counts");
  CHECK(!RESERVES(a, 0, UNIT, LIMIT_BYTES), "full");
}

/* The limit has been lowered: what counts already is no reason to hand it out. */
static void check_lowered_limit(void) {
  struct ledger a = ledger_of(0);
  CHECK(RESERVES(a, 0, LEDGER_BLOCK_BYTES + 1, LIMIT_BYTES), "shows two blocks");
  CHECK(!RESERVES(a, 0, 1, LEDGER_BLOCK_BYTES + 1), "one byte too many");
  CHECK(RESERVES(a, 0, 1, LEDGER_BLOCK_BYTES + 2), "the last byte");
}

/* A process starts among many: it reads each slot once for all of them together, and asks whether a process lives only
 * where that decides. */
#define MANY 1000

static uint64_t by_driver(const void *held_bytes, uint32_t pid) {
  return ((const uint64_t *)held_bytes)[pid];
}

static void check_many(void) {
  static uint64_t held_bytes[MANY];
  struct ledger ledger = ledger_of(MANY - 1);
  for (uint32_t i = 0; i < MANY - 1; i++) {
    usage.processes[i].pid = i;
    usage.processes[i].devices[0].counted_bytes = held_bytes[i] = 10 * UNIT;
  }
  held_bytes[5] = 13 * UNIT;
  held_bytes[7] = 14 * UNIT;
  usage.processes[8].pid_namespace = 1;
  held_bytes[8] = 15 * UNIT;
  dead[7] = dead[9] = true;
  calls = questions = 0;
  CHECK(ledger_uncounted(&ledger, 0, by_driver, held_bytes) == 3 * UNIT, "of the living that it can name");
  CHECK(calls <= MANY + 1 && questions == 2, "%d reads, %d questions", calls, questions);
  calls = questions = 0;
  CHECK(!ledger_uses_more_than(&ledger, 0, 9980 * UNIT), "no more than all show");
  CHECK(calls <= MANY + 1 && questions == 0, "%d reads, %d questions", calls, questions);
  CHECK(!ledger_uses_more_than(&ledger, 0, 9970 * UNIT), "the dead hold nothing");
  CHECK(ledger_uses_more_than(&ledger, 0, 9970 * UNIT - 1), "the living do");
}

/* The ledger grants nothing under a limit where it cannot see the others, or they cannot see this process. */
static void check_without_the_file(void) {
  struct ledger a = ledger_of(0);
  fails = true;
  CHECK(!RESERVES(a, 0, 1, LIMIT_BYTES), "nothing");
  CHECK(RESERVES(a, 0, 1, VGPU_NO_MEMORY_LIMIT), "without a limit");
  fails = false;
  CHECK(ledger_used(&a, 0) == 1, "used %llu", (unsigned long long)ledger_used(&a, 0));
  CHECK(RESERVES(a, 0, LIMIT_BYTES - 1, LIMIT_BYTES), "all of it again");
}

static void check_huge_requests(void) {
  struct ledger a = ledger_of(0);
  ledger_add(&a, 0, 1000 * UNIT);
  CHECK(!RESERVES(a, 0, UINT64_MAX, VGPU_NO_MEMORY_LIMIT), "no device has that much");
  CHECK(ledger_used(&a, 0) == 1000 * UNIT, "nothing wraps around");
}

/* Threads together never pass the limit, and leave nothing over. */
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
  ledger_of(THREADS - 1);
  run_threads(allocate_and_free);
  struct ledger ledger = ledger_of(0);
  CHECK(ledger_used(&ledger, 0) == 0, "%llu left over", (unsigned long long)ledger_used(&ledger, 0));
}

int main(int count, char **names) {
  cases_begin(count, names);
  CASE("sizes") check_sizes();
  CASE("limit") anew(check_limit);
  CASE("death") anew(check_death);
  CASE("overhead") anew(check_overhead);
  CASE("pending") anew(check_pending);
  CASE("managed") anew(check_managed);
  CASE("contexts") anew(check_contexts);
  CASE("made") anew(check_made);
  CASE("damage") anew(check_damage);
  CASE("repair") anew(check_repair);
  CASE("without a slot") anew(check_without_a_slot);
  CASE("large") anew(check_large);
  CASE("small") anew(check_small);
  CASE("small, of many") check_small_of_many();
  CASE("unreserved") anew(check_unreserved);
  CASE("lowered limit") anew(check_lowered_limit);
  CASE("many") anew(check_many);
  CASE("without the file") anew(check_without_the_file);
  CASE("huge requests") anew(check_huge_requests);
  CASE("concurrency") anew(check_concurrency);
  return cases_end();
}
