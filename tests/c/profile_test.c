/* The ring and the totals of a profile: what is dropped is counted, and what is counted is exact. */
#include "cases.h"
#include "check.h"
#include "profile/groups.h"
#include "profile/overlaps.h"
#include "profile/records.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#define THREADS 48 /* more than there are slots for totals */
#define CALLS 5000

#define HOLDS(condition) CHECK(condition, "in %s", __func__)

static char folder[] = "/tmp/profile-test-XXXXXX";
static struct profile_disk disk;

static void open_profile(size_t bytes) {
  HOLDS(profile_disk_open(&disk, folder, bytes));
  profile_records_use(&disk);
  profile_kernels_use(&disk);
}

static void close_profile(void) {
  HOLDS(unlink(disk.path) == 0);
  profile_records_use(NULL);
  profile_kernels_use(NULL);
  profile_disk_close(&disk);
}

/* Of 8 MiB. */
static void with_a_profile(void (*check)(void)) {
  open_profile(8 << 20);
  check();
  close_profile();
}

static void store(uint64_t number) {
  const struct profile_record record = {.start_ns = number, .value = ~number, .kind_and_copy = PROFILE_CALL};
  profile_records_store(&record, 1);
}

/* Calls visit for every record that is there; returns their number. */
static uint64_t each_record(void (*visit)(const struct profile_chunk *chunk, const struct profile_record *record)) {
  uint64_t count = 0;
  struct stat status;
  HOLDS(stat(disk.path, &status) == 0);
  uint64_t chunks = ((uint64_t)status.st_size - PROFILE_CHUNKS_OFFSET) / PROFILE_CHUNK_SIZE;
  for (uint64_t i = 0; i < chunks && i < disk.chunk_count; i++) {
    const struct profile_chunk *chunk = profile_disk_chunk(&disk, i);
    for (uint32_t j = 0; chunk->serial != 0 && j < chunk->used; j++, count++)
      visit(chunk, &chunk->records[j]);
  }
  return count;
}

static void is_whole(const struct profile_chunk *chunk, const struct profile_record *record) {
  (void)chunk;
  HOLDS(record->value == ~record->start_ns);
}

static uint64_t lowest;
static void find_lowest(const struct profile_chunk *chunk, const struct profile_record *record) {
  (void)chunk;
  if (record->start_ns < lowest)
    lowest = record->start_ns;
}

static void everything_is_kept_until_the_file_is_full(void) {
  for (uint64_t i = 0; i < 100000; i++)
    store(i);
  HOLDS(each_record(is_whole) == 100000);
  HOLDS(disk.file->header.dropped == 0);
}

static void the_oldest_goes_first(void) {
  open_profile(PROFILE_DISK_LEAST_BYTES);
  struct stat status;
  for (uint64_t i = 0; i < 200000; i++)
    store(i);
  uint64_t kept = each_record(is_whole);
  HOLDS(kept + disk.file->header.dropped == 200000);
  lowest = UINT64_MAX;
  each_record(find_lowest);
  HOLDS(lowest == 200000 - kept);
  HOLDS(stat(disk.path, &status) == 0 && status.st_size == PROFILE_DISK_LEAST_BYTES);
  close_profile();
}

static void *call_often(void *argument) {
  (void)argument;
  for (uint64_t i = 0; i < CALLS; i++) {
    store(i);
    profile_records_count_time(profile_records_count(i % 3 == 0, i % 5 == 0, 2), i);
    profile_records_count_launch(i % 2);
  }
  return NULL;
}

static struct profile_total sum_of(uint32_t api) {
  struct profile_total sum = {0};
  for (int slot = 0; slot < PROFILE_TOTALS_SLOTS; slot++) {
    const struct profile_total *total = &disk.file->totals[slot][api];
    sum.calls += total->calls;
    sum.failed += total->failed;
    sum.bytes += total->bytes;
    sum.duration_ns += total->duration_ns;
    sum.longest_ns = total->longest_ns > sum.longest_ns ? total->longest_ns : sum.longest_ns;
  }
  return sum;
}

static uint64_t launches_of(uint32_t kernel) {
  uint64_t sum = 0;
  for (int slot = 0; slot < PROFILE_TOTALS_SLOTS; slot++)
    sum += disk.file->launches[slot][kernel];
  return sum;
}

static void run_threads(void) {
  pthread_t threads[THREADS];
  for (int i = 0; i < THREADS; i++)
    HOLDS(pthread_create(&threads[i], NULL, call_often, NULL) == 0);
  for (int i = 0; i < THREADS; i++)
    pthread_join(threads[i], NULL);
}

/* Some threads find no chunk where there are fewer chunks than threads: their records are dropped, and counted as
 * dropped. */
static void threads_lose_no_total(size_t bytes) {
  open_profile(bytes);
  run_threads();
  struct profile_total both[] = {sum_of(0), sum_of(1)};
  HOLDS(both[0].calls + both[1].calls == (uint64_t)THREADS * CALLS);
  HOLDS(both[0].failed + both[1].failed == (uint64_t)THREADS * CALLS / 5);
  HOLDS(both[0].bytes + both[1].bytes == 2ULL * THREADS * CALLS / 5 * 4);
  HOLDS(both[0].duration_ns + both[1].duration_ns == (uint64_t)THREADS * CALLS * (CALLS - 1) / 2);
  HOLDS(launches_of(0) == THREADS * CALLS / 2 && launches_of(1) == THREADS * CALLS / 2);
  HOLDS(both[0].longest_ns == CALLS - 1 && both[1].longest_ns == CALLS - 2);
  HOLDS(each_record(is_whole) + disk.file->header.dropped == (uint64_t)THREADS * CALLS);
  close_profile();
}

static void what_ended_threads_had_is_used_again(void) {
  open_profile(64 << 20);
  for (int i = 0; i < 4; i++)
    run_threads();
  HOLDS(sum_of(0).calls + sum_of(1).calls == 4ULL * THREADS * CALLS);
  HOLDS(each_record(is_whole) + disk.file->header.dropped == 4ULL * THREADS * CALLS);
  close_profile();
}

static void a_file_that_may_not_grow_is_a_smaller_ring(void) {
  struct rlimit before, limit;
  open_profile(16 << 20);
  HOLDS(getrlimit(RLIMIT_FSIZE, &before) == 0);
  limit = before;
  limit.rlim_cur = 4 << 20;
  HOLDS(setrlimit(RLIMIT_FSIZE, &limit) == 0);
  for (uint64_t i = 0; i < 200000; i++)
    store(i);
  HOLDS(setrlimit(RLIMIT_FSIZE, &before) == 0);
  HOLDS(disk.chunk_count == ((4 << 20) - PROFILE_CHUNKS_OFFSET) / PROFILE_CHUNK_SIZE);
  uint64_t kept = each_record(is_whole);
  HOLDS(kept > 50000 && kept + disk.file->header.dropped == 200000);
  close_profile();
}

static void a_folder_that_is_none(void) {
  struct profile_disk none;
  HOLDS(!profile_disk_open(&none, "/proc/no/such/folder", 8 << 20));
  HOLDS(none.file == NULL && none.path == NULL);
}

/* ---- kernels ---------------------------------------------------------------------------------------------------- */

static const struct profile_kernel *kernel_named(const char *name) {
  for (uint32_t i = 0; i < disk.file->header.kernel_count; i++) {
    const struct profile_kernel *kernel = &disk.file->kernels[i];
    if (kernel->name_length == strlen(name) &&
        memcmp(&disk.file->names[kernel->name_offset], name, kernel->name_length) == 0)
      return kernel;
  }
  return NULL;
}

/* ---- groups of launches ------------------------------------------------------------------------------------------ */

#define US 1000LL
#define MS 1000000LL

static struct profile_work *known(uint64_t key, const char *name, int64_t usual_ns) {
  struct profile_work *work = profile_kernels_name(key, name);
  profile_kernels_learn(work, key, usual_ns, true);
  return work;
}

static void join_filling(struct profile_group *group, struct profile_work *work, uint32_t fill, int64_t at_ns) {
  profile_group_join(group, work, work->key, fill, at_ns);
  if (group->launches == 1)
    group->returned_ns = at_ns;
  group->closed_ns = at_ns;
}

static void join(struct profile_group *group, struct profile_work *work, int64_t at_ns) {
  join_filling(group, work, 0, at_ns);
}

static void a_group_is_shared_out_by_what_is_usual(void) {
  struct profile_group group = {0};
  struct profile_work *two[] = {known(16, "short", 10 * US), known(32, "long", 30 * US)};
  struct profile_work *same = known(48, "long", 10 * US); /* another of that name, as of a second module */
  join(&group, two[0], 1 * MS);
  join(&group, two[1], 1 * MS);
  join(&group, same, 1 * MS);
  struct profile_measure measure = profile_group_measure(&group, 2 * MS, 2 * MS + 100 * US);
  HOLDS(measure.from_ns == 2 * MS && measure.to_ns == 2 * MS + 100 * US && measure.busy_ns == 100 * US);
  profile_group_settle(&group, &measure, measure.busy_ns);
  HOLDS(kernel_named("short")->gpu_ns == 20 * US && kernel_named("long")->gpu_ns == 80 * US);
  profile_group_settle(&group, &measure, 50 * US); /* the rest was another stream's */
  HOLDS(kernel_named("short")->gpu_ns == 30 * US && kernel_named("long")->gpu_ns == 120 * US);
  HOLDS(two[0]->usual_ns == 10 * US && two[1]->usual_ns == 30 * US); /* nothing is learned of several */
}

static void one_launch_tells_how_long_its_kernel_takes(void) {
  struct profile_work *work = profile_kernels_name(16, "new");
  struct profile_group group = {0};
  join(&group, work, 1 * MS);
  struct profile_measure measure = profile_group_measure(&group, 1 * MS, 1 * MS + 40 * US);
  profile_group_settle(&group, &measure, 30 * US);
  HOLDS(work->usual_ns == 0); /* was not alone on the GPU */
  profile_group_settle(&group, &measure, 40 * US);
  HOLDS(work->usual_ns == 40 * US && kernel_named("new")->gpu_ns == 70 * US);
  profile_kernels_forget();
  HOLDS(profile_kernels_find(16) == NULL);
  profile_group_settle(&group, &measure, 40 * US); /* was unloaded meanwhile */
  HOLDS(kernel_named("new")->gpu_ns == 110 * US);
}

/* The code of a kernel is loaded within its first launch. */
static void loading_is_not_the_kernels(void) {
  struct profile_work *work = profile_kernels_name(16, "new");
  struct profile_group group = {0};
  join(&group, work, 1 * MS);
  group.returned_ns = group.closed_ns = 3 * MS;
  struct profile_measure measure = profile_group_measure(&group, 1 * MS, 3 * MS + 40 * US);
  HOLDS(measure.busy_ns == 40 * US && measure.from_ns == 3 * MS && !measure.is_sure);
  measure = profile_group_measure(&group, 1 * MS, 2 * MS); /* blocks until the kernel is done, and longer */
  HOLDS(measure.busy_ns == 1 * MS && !measure.is_sure);
}

/* Its thread was stopped before it could record the marker. */
static void a_late_marker_is_not_the_kernels(void) {
  struct profile_work *work = profile_kernels_name(16, "new");
  struct profile_group group = {0};
  join(&group, work, 1 * MS);
  group.returned_ns = 1 * MS + 5 * US;
  group.closed_ns = 9 * MS;
  struct profile_measure measure = profile_group_measure(&group, 1 * MS, 9 * MS);
  HOLDS(measure.busy_ns == 25 * US && measure.to_ns == 1 * MS + 25 * US && !measure.is_sure);
}

static void pauses_are_not_the_kernels(void) {
  struct profile_work *work = known(16, "short", 20 * US);
  struct profile_group group = {0};
  for (int i = 0; i < 10; i++)
    join(&group, work, i * 100 * US);
  struct profile_measure measure = profile_group_measure(&group, 0, 920 * US);
  HOLDS(measure.busy_ns == 200 * US && measure.to_ns == 920 * US && !measure.is_sure);
  measure = profile_group_measure(&group, 0, 10 * MS); /* the last one took longer than usual */
  HOLDS(measure.busy_ns == 9100 * US);
  measure = profile_group_measure(&group, 5 * MS, 5 * MS + 300 * US); /* behind other work there was no pause */
  HOLDS(measure.busy_ns == 300 * US && measure.from_ns == 5 * MS);
  group.closed_ns = 50 * MS; /* nobody looked before: the stream was idle then */
  measure = profile_group_measure(&group, 0, 50 * MS + 1 * US);
  HOLDS(measure.busy_ns == 200 * US && measure.to_ns == 920 * US);
}

static void a_launch_that_failed_is_taken_back(void) {
  struct profile_work *work = known(16, "short", 20 * US), *other = known(32, "other", 20 * US);
  struct profile_group group = {0};
  join(&group, work, 1);
  join(&group, other, 2);
  profile_group_take_back(&group, other);
  profile_group_take_back(&group, other);
  HOLDS(group.launches == 1 && group.usual_ns == 20 * US);
  struct profile_measure measure = profile_group_measure(&group, 2, 2 + 30 * US);
  profile_group_settle(&group, &measure, 30 * US);
  HOLDS(kernel_named("short")->gpu_ns == 30 * US && kernel_named("other")->gpu_ns == 0);
}

static void a_launch_fills_what_its_blocks_do(void) {
  struct profile_work *work = profile_kernels_name(16, "new");
  struct profile_size size = {.blocks = 50, .block_threads = 128, .shared_bytes = 1024};
  HOLDS(!profile_kernels_knows_room(work, &size) && profile_kernels_fill(work, &size) == 0);
  profile_kernels_note_room(work, &size, 100);
  HOLDS(profile_kernels_knows_room(work, &size) && profile_kernels_fill(work, &size) == PROFILE_FULL / 2);
  size.blocks = 100;
  HOLDS(profile_kernels_fill(work, &size) == PROFILE_FULL);
  size.blocks = UINT64_MAX;
  HOLDS(profile_kernels_knows_room(work, &size) && profile_kernels_fill(work, &size) == PROFILE_FULL);
  size.shared_bytes = 2048; /* another block: the GPU has room for another number */
  HOLDS(!profile_kernels_knows_room(work, &size));
  profile_kernels_note_room(work, &size, UINT64_MAX);
  size.blocks = 1;
  HOLDS(profile_kernels_fill(work, &size) == 1); /* hardly anything, but known */
  profile_kernels_note_room(work, &size, 0);
  HOLDS(profile_kernels_knows_room(work, &size) && profile_kernels_fill(work, &size) == 0);
  profile_kernels_forget();
  HOLDS(!profile_kernels_knows_room(profile_kernels_name(16, "other"), &size));
}

static const struct profile_fill *fill_of(const char *name) {
  return &disk.file->fills[kernel_named(name) - disk.file->kernels];
}

static void fill_goes_with_the_time(void) {
  struct profile_group group = {0};
  struct profile_work *two[] = {known(16, "short", 10 * US), known(32, "long", 30 * US)};
  struct profile_work *graph = profile_kernels_graph(64);
  profile_kernels_learn(graph, 64, 60 * US, true);
  join_filling(&group, two[0], PROFILE_FULL, 1 * MS);
  join_filling(&group, two[1], PROFILE_FULL / 2, 1 * MS);
  join_filling(&group, two[1], PROFILE_FULL / 4, 1 * MS);
  join_filling(&group, two[1], PROFILE_FULL, 1 * MS); /* fails, and is taken back with the mean of the three */
  profile_group_take_back(&group, two[1]);
  join_filling(&group, graph, 0, 1 * MS); /* what a graph fills is not known */
  struct profile_measure measure = profile_group_measure(&group, 2 * MS, 2 * MS + 130 * US);
  profile_group_settle(&group, &measure, 130 * US);
  HOLDS(fill_of("short")->known_ns == 10 * US && fill_of("short")->filled_ns == 10 * US);
  HOLDS(fill_of("long")->known_ns == 60 * US);
  HOLDS(llabs((int64_t)fill_of("long")->filled_ns - 35 * US) < 10); /* 7/12 of it */
  HOLDS(fill_of("(graphs)")->known_ns == 0 && kernel_named("(graphs)")->gpu_ns == 60 * US);
}

static void different_work_has_bounded_room(void) {
  struct profile_group group = {0};
  for (uint64_t i = 1; i <= PROFILE_GROUP_PARTS; i++)
    join(&group, known(i * 16, "same", US), 1);
  HOLDS(profile_group_takes(&group, profile_kernels_find(16)) && !profile_group_takes(&group, known(7, "new", US)));
}

static void kernels_without_room_are_others(void) {
  char name[64];
  for (uint64_t i = 1; i < 2 * PROFILE_MAX_KERNELS; i++) {
    snprintf(name, sizeof name, "kernel number %llu", (unsigned long long)i);
    profile_kernels_name(i * 16, name);
  }
  HOLDS(disk.file->header.kernel_count <= PROFILE_MAX_KERNELS);
  HOLDS(disk.file->header.names_used <= PROFILE_NAMES_SIZE);
  struct profile_work *last = profile_kernels_find((2 * PROFILE_MAX_KERNELS - 1) * 16);
  HOLDS(last->kernel == (uint32_t)(kernel_named("(other kernels)") - disk.file->kernels));
  HOLDS(profile_kernels_graph(16)->kernel == (uint32_t)(kernel_named("(graphs)") - disk.file->kernels));
}

/* ---- times that overlap ------------------------------------------------------------------------------------------ */

#define LENGTH 400

static void each_time_is_counted_once(void) {
  srand(1);
  for (int round = 0; round < 2000; round++) {
    struct overlaps overlaps = {0};
    bool counted[LENGTH] = {false};
    for (int i = 0; i < 30; i++) {
      int64_t start = rand() % LENGTH, end = start + rand() % (LENGTH - start), own = 0;
      for (int64_t at = start; at < end; at++) {
        own += !counted[at];
        counted[at] = true;
      }
      HOLDS(overlaps_add(&overlaps, (struct overlap){start, end}) == own);
    }
  }
}

/* Work that is no longer remembered apart counts as it was counted before. */
static void a_long_time_beside_many_short_ones(void) {
  struct overlaps overlaps = {0};
  int64_t count = 20 * OVERLAPS;
  for (int64_t i = 0; i < count; i++)
    HOLDS(overlaps_add(&overlaps, (struct overlap){i * 100, i * 100 + 20}) == 20);
  HOLDS(llabs(overlaps_add(&overlaps, (struct overlap){0, count * 100}) - count * 80) <= count);
}

int main(int count, char **names) {
  cases_begin(count, names);
  HOLDS(mkdtemp(folder) != NULL);
  CASE("everything is kept until the file is full") with_a_profile(everything_is_kept_until_the_file_is_full);
  CASE("the oldest goes first") the_oldest_goes_first();
  CASE("threads lose no total in a small file") threads_lose_no_total(PROFILE_DISK_LEAST_BYTES);
  CASE("threads lose no total in a large file") threads_lose_no_total(64 << 20);
  CASE("what ended threads had is used again") what_ended_threads_had_is_used_again();
  CASE("a file that may not grow is a smaller ring") a_file_that_may_not_grow_is_a_smaller_ring();
  CASE("a folder that is none") a_folder_that_is_none();
  CASE("a group is shared out by what is usual") with_a_profile(a_group_is_shared_out_by_what_is_usual);
  CASE("one launch tells how long its kernel takes") with_a_profile(one_launch_tells_how_long_its_kernel_takes);
  CASE("loading is not the kernel's") with_a_profile(loading_is_not_the_kernels);
  CASE("a late marker is not the kernel's") with_a_profile(a_late_marker_is_not_the_kernels);
  CASE("pauses are not the kernels'") with_a_profile(pauses_are_not_the_kernels);
  CASE("a launch that failed is taken back") with_a_profile(a_launch_that_failed_is_taken_back);
  CASE("a launch fills what its blocks do") with_a_profile(a_launch_fills_what_its_blocks_do);
  CASE("fill goes with the time") with_a_profile(fill_goes_with_the_time);
  CASE("different work has bounded room") with_a_profile(different_work_has_bounded_room);
  CASE("kernels without room are others") with_a_profile(kernels_without_room_are_others);
  CASE("each time is counted once") each_time_is_counted_once();
  CASE("a long time beside many short ones") a_long_time_beside_many_short_ones();
  HOLDS(rmdir(folder) == 0);
  return cases_end();
}
