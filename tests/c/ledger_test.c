#include "check.h"
#include "ledger.h"

#include <pthread.h>
#include <string.h>

#define LIMIT_BYTES 1000000ULL
#define RESERVES(ledger, device, bytes, limit_bytes)                                                                   \
  (ledger_reserve(&(ledger), device, bytes, limit_bytes) != LEDGER_FULL)

static struct vgpu_usage usage;
static struct ledger_own own[VGPU_MAX_PROCESSES];
static bool dead[VGPU_MAX_PROCESSES];

static bool is_live(void *context, int slot) {
  (void)context;
  if (dead[slot])
    memset(&usage.processes[slot], 0, sizeof usage.processes[slot]);
  return !dead[slot];
}

static struct ledger ledger_of(int slot) {
  if (usage.slots_used <= (uint32_t)slot)
    usage.slots_used = (uint32_t)slot + 1;
  return (struct ledger){.own = &own[slot], .usage = &usage, .own_slot = slot, .slot_is_live = is_live};
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
  CHECK(RESERVES(a, 0, 600000, LIMIT_BYTES), "fits");
  CHECK(!RESERVES(b, 0, 400001, LIMIT_BYTES), "one byte too many");
  CHECK(RESERVES(b, 0, 400000, LIMIT_BYTES), "the last byte");
  CHECK(RESERVES(b, 1, LIMIT_BYTES, LIMIT_BYTES), "another device is another account");
  CHECK(!RESERVES(b, 0, UINT64_MAX, LIMIT_BYTES), "no overflow");
  CHECK(ledger_used(&a, 0) == LIMIT_BYTES, "used %llu", (unsigned long long)ledger_used(&a, 0));
  ledger_settle(&b, 0, 400000, 300000);
  CHECK(ledger_used(&a, 0) == 900000, "used %llu", (unsigned long long)ledger_used(&a, 0));
  ledger_release(&b, 0, 1ULL << 60);
  CHECK(ledger_used(&a, 0) == 600000, "never below zero");
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
  ledger_add(&a, 0, 1000);
  correct(&a, 5000, LEDGER_LOOKED, 0);
  CHECK(ledger_used(&a, 0) == 5000, "what the driver holds");
  correct(&a, 10, LEDGER_LOOKED, 0);
  CHECK(ledger_used(&a, 0) == 1000, "what is reserved counts even before the driver has it");
}

/* What is reserved but not allocated yet does not hide a context. */
static void check_pending(void) {
  start_over();
  struct ledger a = ledger_of(0);
  correct(&a, 500, LEDGER_LOOKED, 0);
  CHECK(RESERVES(a, 0, 300, LIMIT_BYTES), "fits");
  correct(&a, 500, LEDGER_LOOKED, 0);
  CHECK(ledger_used(&a, 0) == 800, "before: %llu", (unsigned long long)ledger_used(&a, 0));
  correct(&a, 800, LEDGER_LOOKED, 0);
  CHECK(ledger_used(&a, 0) == 800, "taken: %llu", (unsigned long long)ledger_used(&a, 0));
  ledger_settle(&a, 0, 300, 300);
  CHECK(ledger_used(&a, 0) == 800, "after: %llu", (unsigned long long)ledger_used(&a, 0));
}

/* Managed memory is counted from the start and may come to the device later: neither hides a context nor counts twice.
 */
static void check_managed(void) {
  start_over();
  struct ledger a = ledger_of(0);
  correct(&a, 500, LEDGER_LOOKED, 0);
  ledger_add(&a, 0, 2000);
  ledger_add_managed(&a, 0, 2000);
  correct(&a, 500, LEDGER_LOOKED, 0);
  CHECK(ledger_used(&a, 0) == 2500, "untouched: %llu", (unsigned long long)ledger_used(&a, 0));
  correct(&a, 2500, LEDGER_LOOKED, 0);
  CHECK(ledger_used(&a, 0) == 2500, "touched: %llu", (unsigned long long)ledger_used(&a, 0));
  ledger_release(&a, 0, 2000);
  ledger_release_managed(&a, 0, 2000);
  correct(&a, 500, LEDGER_LOOKED, 0);
  CHECK(ledger_used(&a, 0) == 500, "freed: %llu", (unsigned long long)ledger_used(&a, 0));
}

/* What a context took is overhead, also where untouched managed memory leaves open what the driver's figure means. */
static void check_contexts(void) {
  start_over();
  struct ledger a = ledger_of(0);
  ledger_add(&a, 0, 2000);
  ledger_add_managed(&a, 0, 2000);
  CHECK(correct(&a, 500, LEDGER_LOOKED, 0) == 500, "at most all of it is overhead");
  CHECK(ledger_used(&a, 0) == 2000, "or none: %llu", (unsigned long long)ledger_used(&a, 0));
  ledger_add_context(&a, 0, 500);
  correct(&a, 500, LEDGER_LOOKED, 0);
  CHECK(ledger_used(&a, 0) == 2500, "made: %llu", (unsigned long long)ledger_used(&a, 0));
  CHECK(usage.processes[0].devices[0].context_bytes == 500, "shown");
  correct(&a, 100, LEDGER_LOOKED, 0);
  CHECK(ledger_used(&a, 0) == 2100, "never more than the driver holds: %llu", (unsigned long long)ledger_used(&a, 0));
  ledger_release_context(&a, 0, 500);
  correct(&a, 0, LEDGER_LOOKED, 0);
  CHECK(ledger_used(&a, 0) == 2000 && usage.processes[0].devices[0].context_bytes == 0, "gone");
}

/* What the driver has made for a reservation is overhead before the reservation goes: at no time is it uncounted. */
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
  ledger_add(&a, 0, 3000);
  ledger_add_managed(&a, 0, 3000);
  CHECK(RESERVES(a, 0, 2000, LIMIT_BYTES), "fits");
  correct(&a, 2000, LEDGER_MADE, 2000);
  ledger_settle(&a, 0, 2000, 0);
  CHECK(ledger_used(&a, 0) == 5000, "is not taken for managed memory: %llu", (unsigned long long)ledger_used(&a, 0));
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
  ledger_add(&a, 0, 600000);
  memset(&usage.processes[0], 0xee, sizeof usage.processes[0]);
  CHECK(RESERVES(b, 0, 400000, LIMIT_BYTES), "what cannot be does not count");
  ledger_settle(&b, 0, 400000, 0);
  usage.processes[0].devices[0] = (struct vgpu_device_usage){.allocated_bytes = LIMIT_BYTES, .pending_bytes = 1000};
  CHECK(!RESERVES(b, 0, 1, LIMIT_BYTES), "what can be does");
  memset(&usage, 0, 16);
  correct(&a, 600000, LEDGER_LOOKED, 0);
  CHECK(RESERVES(b, 0, 400000, LIMIT_BYTES) && !RESERVES(b, 0, 1, LIMIT_BYTES), "repaired");
  CHECK(usage.magic == VGPU_USAGE_MAGIC && usage.abi_version == VGPU_ABI_VERSION && usage.slots_used > 0, "the header");
}

static void check_without_a_slot(void) {
  start_over();
  struct ledger a = ledger_of(0), b = {.own = &own[1], .usage = &usage, .own_slot = -1, .slot_is_live = is_live};
  CHECK(RESERVES(a, 0, 600000, LIMIT_BYTES), "fits");
  CHECK(!RESERVES(b, 0, 400001, LIMIT_BYTES), "sees the others");
  CHECK(RESERVES(b, 0, 400000, LIMIT_BYTES) && !RESERVES(b, 0, 1, LIMIT_BYTES), "and itself");
}

static void check_huge_requests(void) {
  start_over();
  struct ledger a = ledger_of(0);
  ledger_add(&a, 0, 1000);
  CHECK(!RESERVES(a, 0, UINT64_MAX, VGPU_NO_MEMORY_LIMIT), "no device has that much");
  CHECK(ledger_used(&a, 0) == 1000, "nothing wraps around");
}

/* Many threads, each a process with a slot of its own: together never past the limit, and nothing left over. */
#define THREADS 8
#define ROUNDS 20000

static uint64_t held;

static void *allocate_and_free(void *argument) {
  int slot = (int)(intptr_t)argument;
  struct ledger ledger = {.own = &own[slot], .usage = &usage, .own_slot = slot, .slot_is_live = is_live};
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

int main(void) {
  check_sizes();
  check_limit();
  check_death();
  check_overhead();
  check_pending();
  check_managed();
  check_contexts();
  check_made();
  check_damage();
  check_repair();
  check_without_a_slot();
  check_huge_requests();
  check_concurrency();
  return 0;
}
