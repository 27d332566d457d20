/*
 * Tenants by their folders: who is found, what strangers can put there, and that each look is bounded, among thousands
 * of folders that were left by programs that have ended, or made by another user for that.
 */
#include "base/clock.h"
#include "cases.h"
#include "check.h"
#include "tenants/presence.h"
#include "tenants/tenants.h"

#include <fcntl.h>
#include <stdarg.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#define MS 1000000LL
#define S (1000 * MS)
#define STRANGE 5000
#define STRANGER 12345
#define SEARCHED 100 /* by a search that takes a hundredth of its time for each */
#define UUID "GPU-00000000-0000-0000-0000-0000000f01d5"

static char place[] = "/dev/shm/tenants-XXXXXX"; /* in memory: a disk takes a minute to remove them */
static struct presence presence;
static int64_t now_ns;
static int64_t step_ns; /* passes between two looks at the clock */
static int opened;      /* folders, each of which is opened by path, and the folder of folders */
static int looked;      /* at that of this machine */

int open(const char *path, int flags, ...) {
  va_list more;
  va_start(more, flags);
  int mode = flags & O_CREAT ? va_arg(more, int) : 0;
  va_end(more);
  opened++;
  looked += strcmp(path, VGPU_LOCK_DIR) == 0;
  return (int)syscall(SYS_openat, AT_FDCWD, path, flags, mode);
}

/* The simulated clock that refreshes use; files keep their real times. */
int clock_gettime(clockid_t clock, struct timespec *now) {
  if (clock != CLOCK_MONOTONIC || now_ns == 0)
    return (int)syscall(SYS_clock_gettime, clock, now);
  now_ns += step_ns;
  *now = (struct timespec){.tv_sec = now_ns / S, .tv_nsec = now_ns % S};
  return 0;
}

/* ---- folders ----------------------------------------------------------------------------------------------------- */

static const char *in_place(const char *name, const char *file) {
  static char paths[2][256];
  static int next;
  char *path = paths[next++ % 2];
  snprintf(path, sizeof *paths, "%s/%s/%s", place, name, file);
  return path;
}

static void write_file(const char *path, const void *content, size_t size) {
  FILE *file = fopen(path, "w");
  CHECK(file != NULL && fwrite(content, 1, size, file) == size && fclose(file) == 0, "%s", path);
}

static void set_age(const char *name, int age_s) {
  struct timespec time;
  clock_gettime(CLOCK_REALTIME, &time);
  time.tv_sec -= age_s;
  CHECK(utimensat(AT_FDCWD, in_place(name, VGPU_PRESENCE_NAME), (struct timespec[]){time, time}, 0) == 0, "%s", name);
}

static void write_limits(const char *name, uint32_t percent, uint32_t policy, uint32_t priority) {
  struct vgpu_limits limits = {
      .magic = VGPU_LIMITS_MAGIC,
      .abi_version = VGPU_ABI_VERSION,
      .device_count = 1,
      .devices[0] = {.uuid = UUID, .sm_limit_percent = percent, .sm_policy = policy, .priority = priority}};
  write_file(in_place(name, "limits"), &limits, sizeof limits);
}

static struct presence_file content;

static void write_presence(const char *name) {
  write_file(in_place(name, VGPU_PRESENCE_NAME), &content, sizeof content);
}

static void make_folder(const char *name, uid_t owner) {
  const char *path = in_place(name, "");
  CHECK(mkdir(path, 0755) == 0 && chown(path, owner, (gid_t)-1) == 0, "%s", path);
}

/* Makes a tenant of one process that was at work `age_ns` ago. */
static void make_tenant(const char *name, uid_t owner, int64_t age_ns) {
  make_folder(name, owner);
  write_limits(name, 50, VGPU_SM_HARD, VGPU_PRIORITY_LOW);
  memset(&content, 0, sizeof content);
  content.seen_ns[0][7] = now_ns - age_ns;
  write_presence(name);
  set_age(name, (int)(age_ns / S));
}

static void make_strangers(int count, int age_s) {
  make_tenant("strange", STRANGER, age_s * S);
  for (int i = 1; i < count; i++) {
    char name[64];
    snprintf(name, sizeof name, "strange-%d", i);
    make_folder(name, STRANGER);
    CHECK(link(in_place("strange", "limits"), in_place(name, "limits")) == 0, "%s", name);
    CHECK(link(in_place("strange", VGPU_PRESENCE_NAME), in_place(name, VGPU_PRESENCE_NAME)) == 0, "%s", name);
  }
}

static void begin(void) {
  struct shared_file usage = {0};
  CHECK(mkdtemp(place) != NULL && chmod(place, 01777) == 0, "%s", place);
  now_ns = clock_now_ns();
  make_tenant("own", geteuid(), 3600 * S);
  setenv(VGPU_ENV_PRESENCE_FILE, in_place("own", VGPU_PRESENCE_NAME), 1);
  CHECK(presence_open(&presence, UUID, 0, &usage, 3), "own");
  presence.folder = place;
}

static void end(void) {
  char command[300];
  if (strcmp(place + strlen(place) - 6, "XXXXXX") == 0)
    return;
  snprintf(command, sizeof command, "rm -rf %s", place);
  CHECK(system(command) == 0, "%s", command);
  strcpy(place + strlen(place) - 6, "XXXXXX");
}

static void with_tenants(void (*check)(void)) {
  begin();
  check();
  end();
}

/* ---- looks ------------------------------------------------------------------------------------------------------- */

static void look(void) {
  opened = 0;
  presence_refresh(&presence, now_ns);
  presence_search(&presence);
}

static int find(const char *name) {
  for (int i = 1; i < presence.count; i++)
    if (strcmp(presence.tenants[i].name, name) == 0)
      return i;
  return 0;
}

static int processes_of(const char *name) {
  int number = find(name);
  return number > 0 ? presence_count(&presence, number, now_ns) : 0;
}

static void check_who_is_found(void) {
  make_tenant("at work", geteuid(), 0);
  make_tenant("idle", geteuid(), 2 * S);
  make_tenant("of another GPU", geteuid(), 0);
  struct vgpu_limits nothing = {.magic = VGPU_LIMITS_MAGIC, .abi_version = VGPU_ABI_VERSION};
  write_file(in_place("of another GPU", "limits"), &nothing, sizeof nothing);
  look();
  CHECK(find("at work") && processes_of("at work") == 1, "at work");
  CHECK(!find("idle") && !find("of another GPU") && !find("own") && presence.count == 2, "%d found", presence.count);
  CHECK(presence.tenants[1].terms.percent == 50 && presence.tenants[1].terms.priority == VGPU_PRIORITY_LOW, "terms");
  write_limits("at work", 20, VGPU_SM_BURST, VGPU_PRIORITY_HIGH);
  look();
  const struct tenant_terms *terms = &presence.tenants[1].terms;
  CHECK(terms->percent == 20 && terms->policy == VGPU_SM_BURST && terms->priority == VGPU_PRIORITY_HIGH, "new terms");
}

static void check_presence(void) {
  presence_note(&presence, now_ns);
  CHECK(presence_count(&presence, 0, now_ns) == 0, "our own does not count");
  struct presence sibling = presence;
  sibling.slot = 4;
  presence_note(&sibling, now_ns);
  CHECK(presence_count(&presence, 0, now_ns) == 1 && presence_count(&sibling, 0, now_ns) == 1, "each sees the other");
  CHECK(presence_count(&presence, 0, now_ns + 500 * MS) == 1, "it works now and then");
  CHECK(presence_count(&presence, 0, now_ns + S) == 0, "it has ended");
}

/* Links, files that are none, names of any length, times of any year, and files that are cut off. */
static void check_what_strangers_put_there(void) {
  char longest[256] = {0};
  memset(longest, 'a', 250);
  make_tenant("sound", STRANGER, 0);
  char path[300];
  snprintf(path, sizeof path, "%s/a link", place);
  CHECK(symlink(in_place("sound", ""), path) == 0, "a link");
  make_tenant("link within", STRANGER, 0);
  CHECK(unlink(in_place("link within", VGPU_PRESENCE_NAME)) == 0, "unlink");
  CHECK(symlink(in_place("sound", VGPU_PRESENCE_NAME), in_place("link within", VGPU_PRESENCE_NAME)) == 0, "a link");
  make_tenant("pipe", STRANGER, 0);
  CHECK(unlink(in_place("pipe", VGPU_PRESENCE_NAME)) == 0, "unlink");
  CHECK(mkfifo(in_place("pipe", VGPU_PRESENCE_NAME), 0644) == 0, "a pipe");
  make_tenant("short", STRANGER, 0);
  CHECK(truncate(in_place("short", VGPU_PRESENCE_NAME), 8) == 0, "cut off");
  make_folder("empty", STRANGER);
  make_folder(longest, STRANGER);
  memset(&content, 0x7f, sizeof content);
  make_folder("year 2262", STRANGER);
  write_limits("year 2262", 50, 77, 77);
  write_presence("year 2262");
  look();
  CHECK(processes_of("sound") == 1, "the sound one");
  CHECK(!find("a link") && !find("link within") && !find("pipe") && !find("empty"), "links, and what is no file");
  CHECK(processes_of("short") == 0 && processes_of("year 2262") == 0, "they do not say that they are at work");
}

static void check_looks_are_bounded(void) {
  make_tenant("job", geteuid(), 0); /* the newest is listed first here */
  make_strangers(STRANGE, 3600);
  step_ns = MS / SEARCHED;
  int looks = 0;
  for (; !find("job"); looks++) {
    set_age("job", 0);
    look();
    CHECK(opened <= SEARCHED + 3 + PRESENCE_TENANTS, "%d folders in a look", opened);
    CHECK(looks < 10 * STRANGE, "it is not found");
  }
  step_ns = 0;
  printf("found after %d looks\n", looks);
  CHECK(looks >= 1 && looks < 2 * STRANGE / SEARCHED, "after %d looks, of %d", looks, STRANGE);
}

static void check_slow_disk(void) {
  make_tenant("one", geteuid(), 0);
  make_tenant("another", geteuid(), 0);
  step_ns = MS; /* more than a search may take */
  for (int looks = 0; looks < 10; looks++)
    presence_search(&presence);
  step_ns = 0;
  CHECK(find("one") && find("another"), "each search goes on");
}

/* Many of one user keep nobody else out, and many that pause keep out none that is at work. */
static void check_places(void) {
  make_strangers(100, 0);
  for (int i = 0; i < 50; i++)
    look();
  CHECK(presence.count == PRESENCE_TENANTS, "%d", presence.count);
  make_tenant("job", geteuid(), 0);
  for (int i = 0; i < 50; i++)
    look();
  CHECK(find("job") && presence.count == PRESENCE_TENANTS, "a user's first one has a place");
  for (int i = 1; i < presence.count; i++)
    presence.tenants[i].owner = geteuid();
  for (int i = 1; i < presence.count; i++)
    presence.tenants[i].seen_ns = now_ns - (i == find("job") ? 0 : 2 * S);
  make_tenant("next", geteuid(), 0);
  for (int i = 0; i < 50; i++)
    look();
  CHECK(find("next") && find("job"), "one that pauses makes room");
  end();
  begin();
  for (int i = 0; i < PRESENCE_TENANTS; i++) {
    char name[64];
    snprintf(name, sizeof name, "job-%d", i);
    make_tenant(name, geteuid(), 0);
  }
  look();
  for (int i = 1; i < presence.count; i++)
    presence.tenants[i].seen_ns = now_ns - 2 * S;
  make_tenant("next", geteuid(), 0);
  look();
  CHECK(find("next"), "also where all are one user's");
}

static void check_pauses(void) {
  make_tenant("job", geteuid(), 0);
  look();
  CHECK(processes_of("job") == 1, "at work");
  now_ns += 50 * S;
  set_age("job", 50);
  look();
  CHECK(find("job") && processes_of("job") == 0, "it pauses, and is known");
  memset(&content, 0, sizeof content);
  content.seen_ns[0][7] = now_ns;
  write_presence("job");
  CHECK(processes_of("job") == 1, "it goes on");
  now_ns += 70 * S;
  set_age("job", 70);
  look();
  CHECK(!find("job"), "it is forgotten");
}

static void remove_folder(const char *name) {
  CHECK(unlink(in_place(name, "limits")) == 0 && unlink(in_place(name, VGPU_PRESENCE_NAME)) == 0 &&
            rmdir(in_place(name, "")) == 0,
        "%s", name);
}

static void check_folders_that_go(void) {
  make_tenant("job", geteuid(), 0);
  look();
  CHECK(find("job"), "there");
  remove_folder("job");
  now_ns += 2 * S;
  make_tenant("job", geteuid(), 0);
  look();
  CHECK(processes_of("job") == 1, "made again");
  remove_folder("job");
  look();
  CHECK(!find("job"), "gone");
}

static int64_t noted_ns(void) {
  FILE *file = fopen(in_place("own", VGPU_PRESENCE_NAME), "r");
  CHECK(file != NULL && fread(&content, sizeof content, 1, file) == 1 && fclose(file) == 0, "own");
  return content.seen_ns[0][3];
}

static void check_refreshes(void) {
  struct shared_file usage = {0};
  struct tenants *tenants = tenants_open(UUID, 0, &usage, 3);
  CHECK(tenants != NULL, "own");
  looked = 0;
  int notes = 0;
  for (int i = 0; i < 1000; i++, now_ns += MS) {
    tenants_refresh(tenants, false);
    notes += noted_ns() == now_ns;
    CHECK(now_ns - noted_ns() < 11 * MS, "seen %lld ms ago", (long long)(now_ns - noted_ns()) / MS);
  }
  CHECK(notes <= 101, "%d times said in a second", notes);
  CHECK(looked >= 9 && looked <= 11, "%d looks in a second", looked);
  tenants_close(tenants);
}

int main(int argument_count, char **names) {
  cases_begin(argument_count, names);
  atexit(end); /* also of a check that has failed */
  CASE("who is found") with_tenants(check_who_is_found);
  CASE("presence") with_tenants(check_presence);
  CASE("what strangers put there") with_tenants(check_what_strangers_put_there);
  CASE("looks are bounded") with_tenants(check_looks_are_bounded);
  CASE("slow disk") with_tenants(check_slow_disk);
  CASE("places") with_tenants(check_places);
  CASE("pauses") with_tenants(check_pauses);
  CASE("folders that go") with_tenants(check_folders_that_go);
  CASE("refreshes") with_tenants(check_refreshes);
  return cases_end();
}
