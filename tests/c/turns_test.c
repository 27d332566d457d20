/* Threads as processes on one GPU: they take turns of it by files in memory, on the system's clock. */
#include "base/clock.h"
#include "cases.h"
#include "check.h"
#include "turns/turns.h"

#include <pthread.h>
#include <string.h>

#define MS 1000000LL
#define MOST 8

static struct turns_slot files[MOST][TURNS_SLOTS];            /* of each tenant; our slot is the first */
static pthread_mutex_t file_lock = PTHREAD_MUTEX_INITIALIZER; /* a system call for each access */
static int using_gpu;
static int overlaps;
static int tenants_there;
static bool stop;

/* Tenants have the numbers of their files, and the own one is the first in the list. */
static int look(void *own, struct turns_tenant *tenants, int count) {
  int number = (int)((struct turns_slot(*)[TURNS_SLOTS])own - files);
  for (int i = 0; i < tenants_there && count < tenants_there; i++)
    if (i != number)
      tenants[count++] = (struct turns_tenant){.id = (uint64_t)i, .terms = {.percent = VGPU_NO_SM_LIMIT}};
  tenants[0].id = (uint64_t)number;
  return count;
}

static int read_shared(void *own, int tenant, struct turns_slot *slots) {
  int number = (int)((struct turns_slot(*)[TURNS_SLOTS])own - files), other = tenant <= number ? tenant - 1 : tenant;
  pthread_mutex_lock(&file_lock);
  memcpy(slots, files[tenant == 0 ? number : other], sizeof files[0]);
  pthread_mutex_unlock(&file_lock);
  return TURNS_SLOTS;
}

static void write_shared(void *own, int slot, const struct turns_slot *content) {
  pthread_mutex_lock(&file_lock);
  (*(struct turns_slot(*)[TURNS_SLOTS])own)[slot] = *content;
  pthread_mutex_unlock(&file_lock);
}

static int keep(void *files, struct turns_tenant *tenants, int count) {
  (void)files, (void)tenants;
  return count;
}

static const struct turns_system in_memory = {clock_now_ns, clock_sleep_ns, keep, look, read_shared, write_shared};

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
      turns_pass(turns);
    if (!turns_is_ours(turns))
      turns_take(turns);
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
  turns_pass(turns);
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
  memset(files, 0, sizeof files);
  memset(tenants, 0, sizeof tenants);
  tenants_there = count;
  for (int i = 0; i < count; i++) {
    turns_begin(&tenants[i].turns, &in_memory, &files[i], 0);
    tenants[i].turns.terms = (struct turns_terms){.percent = VGPU_NO_SM_LIMIT};
  }
}

/* A busy machine holds threads up, which is no fault of the turns: what is wrong stays wrong. */
static void check_measured(bool (*holds)(int count), int count) {
  for (int tries = 0; !holds(count); tries++)
    CHECK(tries < 4, "%s", case_name);
}

static bool turns_are_fair_and_exclusive(int count) {
  start_over(count);
  run(count, 1000 * MS);
  int64_t total_ns = 0;
  for (int i = 0; i < count; i++)
    total_ns += tenants[i].used_ns;
  bool holds = true;
  for (int i = 0; i < count; i++) {
    double share = (double)tenants[i].used_ns / (double)total_ns * count;
    fprintf(stderr, "%d of %d has %.2f of its part\n", i, count, share);
    holds = holds && share > 0.5 && share < 1.6; /* and tokens see to the rest: tenants_test.c */
  }
  /* A thread that is held up past its grace rightly loses its turn. */
  int64_t units = total_ns / (MS / 2);
  fprintf(stderr, "%d overlaps in %lld units of work\n", overlaps, (long long)units);
  return holds && overlaps < units / 20;
}

static bool the_other_one_is_seen(int count) {
  start_over(count);
  CHECK(!turns_refresh(&tenants[0].turns).company, "nobody has been seen");
  turns_note_activity(&tenants[1].turns, clock_now_ns());
  clock_sleep_ns(10 * MS);
  CHECK(!turns_refresh(&tenants[1].turns).company, "one is no company to itself");
  return turns_refresh(&tenants[0].turns).company;
}

static bool the_dead_are_passed_over(int count) {
  start_over(count);
  tenants[0].kind = DIES_HOLDING;
  run(count, 1600 * MS);
  fprintf(stderr, "%lld and %lld ms\n", (long long)tenants[1].used_ns / MS, (long long)tenants[2].used_ns / MS);
  return tenants[1].used_ns > 300 * MS && tenants[2].used_ns > 300 * MS;
}

static bool endless_work_loses_its_turn(int count) {
  start_over(count);
  tenants[0].kind = NEVER_DRAINS;
  run(count, 1500 * MS);
  fprintf(stderr, "waited %lld ms, used %lld ms\n", (long long)tenants[1].longest_wait_ns / MS,
          (long long)tenants[1].used_ns / MS);
  return tenants[1].longest_wait_ns < TURNS_LONGEST_NS + 50 * MS && tenants[1].used_ns > 300 * MS;
}

/* Whatever is in the file: no crash, and no wait past the patience. */
static bool damage_is_borne(int count) {
  start_over(count);
  unsigned seed = 7;
  bool holds = true;
  for (int round = 0; round < 6; round++) {
    for (size_t i = 0; i < sizeof files[1]; i++)
      ((unsigned char *)&files[1])[i] = (unsigned char)(round == 0 ? 0xff : round == 1 ? 0x7f : rand_r(&seed));
    int64_t began_ns = clock_now_ns();
    (void)turns_refresh(&tenants[0].turns);
    turns_must_pass(&tenants[0].turns, 0);
    turns_take(&tenants[0].turns);
    turns_pass(&tenants[0].turns);
    int64_t took_ns = clock_now_ns() - began_ns;
    fprintf(stderr, "round %d: %lld ms\n", round, (long long)took_ns / MS);
    holds = holds && took_ns < TURNS_PATIENCE_NS + 200 * MS;
  }
  return holds;
}

/* Two wait: whose slice it is goes first, so that they meet on all GPUs, whichever began to wait first there. */
static bool slices_decide(int count) {
  int before = 0;
  start_over(count);
  for (int i = 0; i < 100; i++) {
    int64_t now_ns = clock_now_ns();
    files[1][0] = (struct turns_slot){.ticket_ns = now_ns - MS, .seen_ns = now_ns};
    before += turns_refresh(&tenants[0].turns).goes_before;
    clock_sleep_ns(MS);
  }
  fprintf(stderr, "the other goes first in %d of 100\n", before);
  return before > 30 && before < 70;
}

int main(int count, char **names) {
  cases_begin(count, names);
  CASE("the other one launches") check_measured(the_other_one_is_seen, 2);
  CASE("two share") check_measured(turns_are_fair_and_exclusive, 2);
  CASE("four share") check_measured(turns_are_fair_and_exclusive, 4);
  CASE("the dead are passed over") check_measured(the_dead_are_passed_over, 3);
  CASE("endless work loses its turn") check_measured(endless_work_loses_its_turn, 2);
  CASE("slices decide") check_measured(slices_decide, 2);
  CASE("whatever is in the file of another") check_measured(damage_is_borne, 2);
  return cases_end();
}
