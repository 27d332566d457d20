/* The ring and the totals of a profile: what is dropped is counted, and what is counted is exact. */
#include "cases.h"
#include "check.h"
#include "profile/kernels.h"
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
  open_profile(8 << 20);
  for (uint64_t i = 0; i < 100000; i++)
    store(i);
  HOLDS(each_record(is_whole) == 100000);
  HOLDS(disk.file->header.dropped == 0);
  close_profile();
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

/* With fewer chunks than threads some of them find none: then their records are dropped, and counted as such. */
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

static uint64_t launches_of_named(const char *name) {
  return launches_of((uint32_t)(kernel_named(name) - disk.file->kernels));
}

static void launch(struct batch *batch, uint64_t function, int64_t expected_ns) {
  profile_kernels_launch_begins(function);
  profile_kernels_joined(batch, expected_ns);
  profile_kernels_launch_ends(true);
}

static void a_batch_is_shared_out_by_what_was_expected(void) {
  open_profile(8 << 20);
  struct batch batch = {0};
  profile_kernels_name(16, "short");
  profile_kernels_name(32, "long");
  profile_kernels_name(48, "long"); /* another function of that name, as of a second module */
  HOLDS(profile_kernels_launch_begins(16) && !profile_kernels_launch_begins(64));
  launch(&batch, 16, 100);
  launch(&batch, 32, 200);
  launch(&batch, 48, 100);
  profile_kernels_measured(&batch, 800);
  HOLDS(kernel_named("short")->gpu_ns == 200 && launches_of_named("short") == 1);
  HOLDS(kernel_named("long")->gpu_ns == 600 && launches_of_named("long") == 2);

  struct batch second = {0}; /* what is not expected has the rest */
  launch(&second, 16, 100);
  launch(&second, 64, 0);
  profile_kernels_measured(&second, 1000);
  HOLDS(kernel_named("short")->gpu_ns == 300);
  HOLDS(kernel_named("(other kernels)")->gpu_ns == 900);

  struct batch graph = {0}, dropped = {0};
  launch(&graph, 0, 0);
  profile_kernels_measured(&graph, 70);
  HOLDS(kernel_named("(graphs)")->gpu_ns == 70);
  launch(&dropped, 16, 100);
  profile_kernels_measured(&dropped, 0);
  HOLDS(kernel_named("short")->gpu_ns == 300 && launches_of_named("short") == 3);

  profile_kernels_forget();
  HOLDS(!profile_kernels_launch_begins(16));
  close_profile();
}

static void kernels_without_room_are_others(void) {
  open_profile(8 << 20);
  char name[64];
  for (uint64_t i = 1; i < 2 * PROFILE_MAX_KERNELS; i++) {
    snprintf(name, sizeof name, "kernel number %llu", (unsigned long long)i);
    profile_kernels_name(i * 16, name);
  }
  HOLDS(disk.file->header.kernel_count <= PROFILE_MAX_KERNELS);
  HOLDS(disk.file->header.names_used <= PROFILE_NAMES_SIZE);
  struct batch batch = {0};
  launch(&batch, 2ULL * PROFILE_MAX_KERNELS * 16 - 16, 10);
  profile_kernels_measured(&batch, 10);
  HOLDS(launches_of_named("(other kernels)") == 1);
  close_profile();
}

static void a_run_outlasts_a_clock_that_goes_back(void) {
  struct profile_record run = {.start_ns = 5000, .value = profile_run_value(7)};
  profile_records_grow(&run, 4900, 0);
  HOLDS(run.value == (7 << 16 | 1));
  profile_records_grow(&run, 5300, 200);
  HOLDS(run.value == (300ULL << 32 | 7 << 16 | 2) && run.duration_ns == 200);
}

int main(int count, char **names) {
  cases_begin(count, names);
  HOLDS(mkdtemp(folder) != NULL);
  CASE("everything is kept until the file is full") everything_is_kept_until_the_file_is_full();
  CASE("the oldest goes first") the_oldest_goes_first();
  CASE("threads lose no total in a small file") threads_lose_no_total(PROFILE_DISK_LEAST_BYTES);
  CASE("threads lose no total in a large file") threads_lose_no_total(64 << 20);
  CASE("what ended threads had is used again") what_ended_threads_had_is_used_again();
  CASE("a file that may not grow is a smaller ring") a_file_that_may_not_grow_is_a_smaller_ring();
  CASE("a folder that is none") a_folder_that_is_none();
  CASE("a batch is shared out by what was expected") a_batch_is_shared_out_by_what_was_expected();
  CASE("kernels without room are others") kernels_without_room_are_others();
  CASE("a run outlasts a clock that goes back") a_run_outlasts_a_clock_that_goes_back();
  HOLDS(rmdir(folder) == 0);
  return cases_end();
}
