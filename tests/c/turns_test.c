/* Threads as processes on one GPU: they take turns of it in a file in memory, on the system's clock and futex. */
#include "check.h"
#include "clock.h"
#include "turns.h"

#include <pthread.h>
#include <string.h>

#define MS 1000000LL
#define MOST 8

static struct turns_file file;
static pthread_mutex_t file_lock = PTHREAD_MUTEX_INITIALIZER; /* a system call for each access */
static pthread_mutex_t turn_lock = PTHREAD_MUTEX_INITIALIZER;
static int using_gpu;
static int overlaps;
static bool stop;

static bool read_shared(void *shared, void *to, size_t size, size_t at) {
  pthread_mutex_lock(&file_lock);
  memcpy(to, (char *)shared + at, size);
  pthread_mutex_unlock(&file_lock);
  return true;
}

static void write_shared(void *shared, const void *from, size_t size, size_t at) {
  pthread_mutex_lock(&file_lock);
  memcpy((char *)shared + at, from, size);
  pthread_mutex_unlock(&file_lock);
}

static bool lock_shared(void *shared) {
  (void)shared;
  return pthread_mutex_lock(&turn_lock) == 0;
}

static void unlock_shared(void *shared) {
  (void)shared;
  pthread_mutex_unlock(&turn_lock);
}

static bool is_held(void *shared, int slot) {
  (void)shared, (void)slot;
  return true;
}

static void wait_shared(void *shared, uint32_t expected, int64_t duration_ns) {
  struct shared_file mapped = {.memory = shared};
  turns_file_system.wait(&mapped, expected, duration_ns);
}

static void wake_shared(void *shared) {
  struct shared_file mapped = {.memory = shared};
  turns_file_system.wake_all(&mapped);
}

static const struct turns_system in_memory = {clock_now_ns,  clock_sleep_ns, read_shared, write_shared, lock_shared,
                                              unlock_shared, is_held,        wait_shared, wake_shared};

struct tenant {
  struct turns turns;
  pthread_t thread;
  int64_t used_ns;
  int64_t longest_wait_ns;
  enum { WORKS, DIES_HOLDING, NEVER_DRAINS } kind;
};

static struct tenant tenants[MOST];

/* Work of half a millisecond at a time; only while it is our turn. */
static void *work(void *argument) {
  struct tenant *tenant = argument;
  struct turns *turns = &tenant->turns;
  while (!__atomic_load_n(&stop, __ATOMIC_RELAXED)) {
    int64_t began_ns = clock_now_ns();
    if (turns_must_pass(turns, 0))
      turns_pass(turns, true);
    if (!turns_is_ours(turns) && !turns_take(turns))
      continue;
    int64_t waited_ns = clock_now_ns() - began_ns;
    if (waited_ns > tenant->longest_wait_ns)
      tenant->longest_wait_ns = waited_ns;
    if (tenant->kind == DIES_HOLDING)
      return NULL;
    /* Generous, so that a thread which a busy machine holds up is not taken for idle. */
    turns_note_activity(turns, clock_now_ns() + (tenant->kind == NEVER_DRAINS ? 1000000 * MS : 20 * MS));
    if (tenant->kind == NEVER_DRAINS) {
      clock_sleep_ns(500 * MS);
      continue;
    }
    if (__atomic_add_fetch(&using_gpu, 1, __ATOMIC_SEQ_CST) > 1)
      __atomic_add_fetch(&overlaps, 1, __ATOMIC_RELAXED);
    clock_sleep_ns(MS / 2);
    __atomic_sub_fetch(&using_gpu, 1, __ATOMIC_SEQ_CST);
    tenant->used_ns += MS / 2;
  }
  turns_pass(turns, true);
  return NULL;
}

static void run(int count, int64_t duration_ns) {
  stop = false;
  using_gpu = overlaps = 0;
  for (int i = 0; i < count; i++)
    pthread_create(&tenants[i].thread, NULL, work, &tenants[i]);
  clock_sleep_ns(duration_ns);
  __atomic_store_n(&stop, true, __ATOMIC_RELAXED);
  for (int i = 0; i < count; i++)
    pthread_join(tenants[i].thread, NULL);
}

static void start_over(int count) {
  memset(&file, 0, sizeof file);
  memset(tenants, 0, sizeof tenants);
  for (int i = 0; i < count; i++)
    turns_begin(&tenants[i].turns, &in_memory, &file, i);
}

static void check_turns_are_fair_and_exclusive(int count) {
  start_over(count);
  run(count, 1500 * MS);
  int64_t total_ns = 0;
  for (int i = 0; i < count; i++)
    total_ns += tenants[i].used_ns;
  for (int i = 0; i < count; i++) {
    double share = (double)tenants[i].used_ns / (double)total_ns * count;
    CHECK(share > 0.7 && share < 1.3, "%d of %d has %.2f of its part", i, count, share);
  }
  /* A busy machine may hold a thread up past its grace: then its turn is rightly taken. */
  int64_t units = total_ns / (MS / 2);
  CHECK(overlaps < units / 20, "%d overlaps in %lld units of work", overlaps, (long long)units);
}

static void check_alone(void) {
  start_over(2);
  CHECK(!turns_have_company(&tenants[0].turns), "nobody has been seen");
  turns_note_activity(&tenants[1].turns, clock_now_ns());
  clock_sleep_ns(10 * MS);
  CHECK(turns_have_company(&tenants[0].turns), "the other one launches");
  CHECK(!turns_have_company(&tenants[1].turns), "one is no company to itself");
}

static void check_the_dead_are_passed_over(void) {
  start_over(3);
  tenants[0].kind = DIES_HOLDING;
  run(3, 1600 * MS);
  CHECK(tenants[1].used_ns > 300 * MS && tenants[2].used_ns > 300 * MS, "%lld and %lld ms",
        (long long)tenants[1].used_ns / MS, (long long)tenants[2].used_ns / MS);
}

static void check_endless_work_loses_its_turn(void) {
  start_over(2);
  tenants[0].kind = NEVER_DRAINS;
  run(2, 1500 * MS);
  CHECK(tenants[1].longest_wait_ns < 250 * MS, "waited %lld ms", (long long)tenants[1].longest_wait_ns / MS);
  CHECK(tenants[1].used_ns > 300 * MS, "used %lld ms", (long long)tenants[1].used_ns / MS);
}

/* Whatever is in the file: no crash, and no wait past the patience. */
static void check_damage(void) {
  start_over(1);
  unsigned seed = 7;
  for (int round = 0; round < 6; round++) {
    for (size_t i = 0; i < sizeof file; i++)
      ((unsigned char *)&file)[i] = (unsigned char)(round == 0 ? 0xff : round == 1 ? 0x7f : rand_r(&seed));
    int64_t began_ns = clock_now_ns();
    turns_have_company(&tenants[0].turns);
    turns_must_pass(&tenants[0].turns, 0);
    turns_take(&tenants[0].turns);
    turns_pass(&tenants[0].turns, true);
    CHECK(clock_now_ns() - began_ns < TURNS_PATIENCE_NS + 200 * MS, "round %d: %lld ms", round,
          (long long)(clock_now_ns() - began_ns) / MS);
  }
}

int main(void) {
  check_alone();
  check_turns_are_fair_and_exclusive(2);
  check_turns_are_fair_and_exclusive(4);
  check_the_dead_are_passed_over();
  check_endless_work_loses_its_turn();
  check_damage();
  return 0;
}
