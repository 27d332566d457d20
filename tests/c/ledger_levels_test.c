/* A share within another one, as many levels as there can be, and devices that have other numbers there. */
#include "ledger_files.h"

#define ROUNDS 5000

static struct vgpu_usage above_usage[VGPU_MAX_LEVELS - 1];

static void start_levels(void) {
  start_over();
  memset(above_usage, 0, sizeof above_usage);
}

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
    start_levels();
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
 * of the limit, and less of it the more processes there are. It never holds less than it shows. */
static void check_kept_above(void) {
  const uint64_t bytes = 10 * LEDGER_BLOCK_BYTES, most_bytes = 18 * LEDGER_BLOCK_BYTES;
  const uint64_t limits_bytes[VGPU_MAX_LEVELS] = {LIMIT_BYTES, THREADS * 64 * most_bytes, LIMIT_BYTES};
  const struct vgpu_device_usage *shown = &usage.processes[0].devices[0];
  const struct vgpu_device_usage *above = &above_usage[0].processes[0].devices[1];
  struct ledger levels[VGPU_MAX_LEVELS], beside[VGPU_MAX_LEVELS];
  start_levels();
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
  start_levels();
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
    start_levels();
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
  start_levels();
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
  for (int i = 0; i < ROUNDS; i++) {
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
  start_levels();
  for (int i = 0; i < VGPU_MAX_LEVELS - 1; i++)
    above_usage[i].slots_used = THREADS;
  struct ledger outermost = ledger_of(THREADS - 1);
  run_threads(allocate_in_share);
  CHECK(ledger_used(&outermost, 0) == 0, "left over");
}

int main(int count, char **names) {
  cases_begin(count, names);
  CASE("each level refuses") check_each_level_refuses();
  CASE("kept above") check_kept_above();
  CASE("kept under a lowered limit") check_kept_under_a_lowered_limit();
  CASE("a level that fails") check_level_that_fails();
  CASE("dead at all levels") check_dead_at_all_levels();
  CASE("shares at once") check_shares_at_once();
  return cases_end();
}
