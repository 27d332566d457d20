/*
 * Thousands of folders among the tenants: left by programs that have ended, or made by another user for that. Who takes
 * turns on our GPU is found by the first refresh, when it begins later, and when it goes on after a pause, and no
 * refresh has more looks at folders than its bound.
 */
#include "cases.h"
#include "check.h"
#include "turns/turns_file.h"

#include <fcntl.h>
#include <stdarg.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#define STRANGE 5000
#define JOBS 5
#define UUID "GPU-00000000-0000-0000-0000-0000000f01d5"
#define OPENED_OTHERWISE (1 + TURNS_RESTING + 1) /* the folder of folders; those that rest; a tenant's own */

static char place[] = "/dev/shm/folders-XXXXXX"; /* in memory: a disk takes a minute to remove them */
static struct turns_files *files;
static struct turns_tenant tenants[TURNS_TENANTS];
static int count;
static bool strange_ones_work;
static int
    opened; /* looks at folders, each of which opens it: by path, and nothing else is but the folder of folders */

int open(const char *path, int flags, ...) {
  va_list more;
  va_start(more, flags);
  int mode = flags & O_CREAT ? va_arg(more, int) : 0;
  va_end(more);
  opened++;
  return (int)syscall(SYS_openat, AT_FDCWD, path, flags, mode);
}

/* ---- folders ----------------------------------------------------------------------------------------------------- */

static void in_place(char *path, const char *name, const char *file) {
  snprintf(path, 256, "%s/%s/%s", place, name, file);
}

static void write_file(const char *path, const void *content, size_t size) {
  FILE *file = fopen(path, "w");
  CHECK(file != NULL && fwrite(content, 1, size, file) == size && fclose(file) == 0, "%s", path);
}

static void set_time(const char *name, struct timespec time) {
  char path[256];
  in_place(path, name, VGPU_TURNS_NAME);
  CHECK(utimensat(AT_FDCWD, path, (struct timespec[]){time, time}, 0) == 0, "%s", path);
}

static void set_age(const char *name, int age_s) {
  struct timespec time;
  clock_gettime(CLOCK_REALTIME, &time);
  time.tv_sec -= age_s;
  set_time(name, time);
}

/* 2^64 nanoseconds from now. */
static void set_far(const char *name) {
  struct timespec time;
  clock_gettime(CLOCK_REALTIME, &time);
  time.tv_sec += 18446744073 + (time.tv_nsec + 709551616) / 1000000000;
  time.tv_nsec = (time.tv_nsec + 709551616) % 1000000000;
  set_time(name, time);
}

static void make_tenant(const char *name, int age_s) {
  static const struct turns_file zeros;
  struct vgpu_limits limits = {
      .magic = VGPU_LIMITS_MAGIC, .abi_version = VGPU_ABI_VERSION, .device_count = 1, .devices[0].uuid = UUID};
  char path[256];
  in_place(path, name, "");
  CHECK(mkdir(path, 0755) == 0, "%s", path);
  in_place(path, name, "limits");
  write_file(path, &limits, sizeof limits);
  in_place(path, name, VGPU_TURNS_NAME);
  write_file(path, &zeros, sizeof zeros);
  set_age(name, age_s);
}

/* Its files are those of `first`, so that all are as old as that. */
static void make_more(const char *first, int number, uid_t owner) {
  char name[64], path[256], target[256];
  snprintf(name, sizeof name, "%s-%d", first, number);
  in_place(path, name, "");
  CHECK(mkdir(path, 0755) == 0, "%s", path);
  for (int i = 0; i < 2; i++) {
    const char *file = i == 0 ? "limits" : VGPU_TURNS_NAME;
    in_place(target, first, file);
    in_place(path, name, file);
    CHECK(link(target, path) == 0, "%s", path);
  }
  in_place(path, name, "");
  CHECK(chown(path, owner, (gid_t)-1) == 0, "%s", path);
}

static const char *job(int number) {
  static char name[16];
  snprintf(name, sizeof name, "job-%d", number);
  return name;
}

/* The jobs are idle as long as the others, and are listed after them where the newest comes first. */
static void begin(uid_t owner) {
  CHECK(mkdtemp(place) != NULL && chmod(place, 01777) == 0, "%s", place);
  make_tenant("own", 0);
  for (int i = 0; i < JOBS; i++)
    make_tenant(job(i), 3600);
  make_tenant("strange", 3600);
  for (int i = 0; i < STRANGE; i++)
    make_more("strange", i, owner);
  files = calloc(1, sizeof *files);
  files->uuid = UUID;
  files->folder = place;
  char path[256];
  in_place(path, "own", VGPU_TURNS_NAME);
  CHECK(shared_file_open(&files->peers[0].file, path, sizeof(struct turns_file), 0, SHARED_FILE_ANY_OWNER), "own");
  count = 1;
}

static void end(void) {
  char command[300];
  if (strcmp(place + strlen(place) - 6, "XXXXXX") == 0)
    return;
  snprintf(command, sizeof command, "rm -rf %s", place);
  CHECK(system(command) == 0, "%s", command);
  strcpy(place + strlen(place) - 6, "XXXXXX");
}

/* ---- refreshes --------------------------------------------------------------------------------------------------- */

/* A refresh. Those whose files say nothing have no process, as for turns.c. */
static void refresh(void) {
  if (strange_ones_work)
    set_age("strange", 0);
  opened = 0;
  count = turns_file_system.list(files, tenants, count);
  count = turns_file_system.look(files, tenants, count);
  for (int i = 1; i < count; i++)
    tenants[i].processes = strange_ones_work || strncmp(files->peers[i].name, "job", 3) == 0;
}

static bool is_found(const char *name) {
  for (int i = 1; i < count; i++)
    if (strcmp(files->peers[i].name, name) == 0)
      return true;
  return false;
}

/* Returns how many looks it took. */
static int find(const char *name) {
  int looks = 0, refreshes = 0, long_ones = 0;
  time_t began_s = time(NULL);
  do {
    set_age(name, 0);
    int known = count - 1; /* each of which is opened once more */
    refresh();
    looks += opened - known;
    refreshes++;
    long_ones += opened > TURNS_LOOKS + TURNS_TENANTS + OPENED_OTHERWISE;
    CHECK(long_ones <= 1 + time(NULL) - began_s, "%d long looks, the last of %d", long_ones, opened);
    CHECK(refreshes < 10000, "%s is not found", name);
  } while (!is_found(name));
  printf("%s: found after %d looks in %d refreshes\n", name, looks, refreshes);
  return looks;
}

static void pass(void) {
  for (uint32_t number = files->folders.pass; number == files->folders.pass;)
    refresh();
}

static void check_first_refresh(void) {
  begin(12345);
  set_age(job(0), 0);
  set_far(job(1));
  refresh();
  CHECK(is_found(job(0)), "not at once");
  CHECK(!is_found(job(1)), "a time in the year 2611 is no work");
  end();
}

/* A folder that pauses is in its place when it goes on, and not in the next pass. */
static void check_pause(void) {
  begin(12345);
  set_age(job(0), 0);
  refresh();
  for (int i = 0; i < 5; i++) {
    tenants[1].processes = 0;
    set_age(job(0), 2);
    refresh();
    CHECK(!is_found(job(0)), "it pauses");
    set_age(job(0), 0);
    refresh();
    CHECK(is_found(job(0)), "it goes on");
  }
  end();
}

/* Is a new folder found at once? It comes in the middle of a pass, behind which the newest are. */
static bool finds_at_once(const char *name) {
  usleep(1100000);
  refresh();
  make_tenant(name, 0);
  refresh();
  return is_found(name);
}

/* A busy machine has no time for all of a long look. Those that come soon after one are found in the next pass:
 * somebody may make folders for ever. */
static void check_new(uid_t owner) {
  int number = JOBS;
  begin(owner);
  pass();
  pass();
  while (!finds_at_once(job(number++)))
    CHECK(number < 6 * JOBS, "none is found at once");
  for (int last = number + JOBS; number < last; number++) {
    make_tenant(job(number), 0);
    int looked = find(job(number));
    CHECK(looked < STRANGE / 4, "%d looks", looked);
  }
  end();
}

static void check_new_beside_work(void) {
  strange_ones_work = true;
  check_new(12345);
  strange_ones_work = false;
}

/* Folders that go on may be put off where all are of one user. */
static void check_old(uid_t owner, int most_looks) {
  begin(owner);
  for (int i = 0; i < JOBS; i++) {
    pass();
    pass();
    int looks = find(job(i));
    CHECK(looks < most_looks, "%d looks", looks);
  }
  end();
}

/* Somebody makes folders for ever, and there is not time for all of them even in a long look. */
static void check_that_a_pass_ends(void) {
  static struct turns_folders folders = {.long_ns = 1, .next_entry = 77};
  turns_folders_begin_refresh(&folders, 1);
  CHECK(folders.looks_left > TURNS_LOOKS && folders.next_entry == 77, "begins anew");
  CHECK(turns_folders_end_pass(&folders), "what has come may be before that");
  CHECK(folders.next_entry == 0 && folders.seen_ns != 1, "%lld", (long long)folders.next_entry);
  CHECK(!turns_folders_end_pass(&folders) && folders.seen_ns == 1, "all has been looked at");
}

/* ---- when there is time for it ----------------------------------------------------------------------------------- */

static int64_t clock_ns, write_ns;
static int lists, looks;

static int64_t now(void) {
  return clock_ns;
}

static void sleep_for(int64_t duration_ns) {
  clock_ns += duration_ns;
}

static int count_list(void *of, struct turns_tenant *known, int known_count) {
  (void)of, (void)known;
  lists++;
  return known_count;
}

static int count_look(void *of, struct turns_tenant *known, int known_count) {
  (void)of, (void)known;
  looks++;
  return known_count;
}

static int read_nothing(void *of, int tenant, struct turns_slot *slots) {
  (void)of, (void)tenant, (void)slots;
  return 0;
}

static void write_nothing(void *of, int slot, const struct turns_slot *own) {
  (void)of, (void)slot, (void)own;
  clock_ns += write_ns;
}

static const struct turns_system counting = {now, sleep_for, count_list, count_look, read_nothing, write_nothing};

/* A look takes a fifth of a millisecond, which a launch on an idle GPU would wait for. */
static void check_when_it_looks(void) {
  struct turns turns;
  clock_ns = 1000000000000;
  turns_begin(&turns, &counting, NULL, 0);
  for (int i = 0; i < 1000; i++, clock_ns += 1000000)
    turns_refresh(&turns);
  CHECK(lists == 100 && looks == 10, "%d times kept, %d looked", lists, looks);
  for (int i = 0; i < 1000; i++, clock_ns += 1000000)
    turns_look(&turns);
  CHECK(looks == 110, "%d looks where they delay nothing", looks - 10);
}

/* A lease that ends while it is put off: others are read again, and none is looked for. */
static void check_that_it_does_not_look_in_a_lease(void) {
  struct turns turns;
  clock_ns = 1000000000000;
  turns_begin(&turns, &counting, NULL, 0);
  turns_take(&turns);
  turns_note_activity(&turns, clock_ns + 200000000);
  clock_ns += 150000000;
  lists = looks = 0;
  write_ns = 100000000;
  turns_note_activity(&turns, clock_ns + 100000000);
  write_ns = 0;
  CHECK(lists == 1 && looks == 0, "%d times kept, %d looked", lists, looks);
}

int main(int argument_count, char **names) {
  cases_begin(argument_count, names);
  atexit(end); /* also of a check that has failed */
  CASE("the first refresh") check_first_refresh();
  CASE("a pause") check_pause();
  CASE("begins beside those of another user that have ended") check_new(12345);
  CASE("begins beside those of its own user that have ended") check_new(geteuid());
  CASE("begins beside those of another user that work") check_new_beside_work();
  CASE("goes on after hours beside those of another user") check_old(12345, STRANGE / 4);
  CASE("goes on after hours beside those of its own user") check_old(geteuid(), TURNS_PUT_OFF_PASSES * STRANGE / 4);
  CASE("folders come for ever") check_that_a_pass_ends();
  CASE("looks where that delays nothing") check_when_it_looks();
  CASE("does not look in a lease") check_that_it_does_not_look_in_a_lease();
  return cases_end();
}
