#include "region.h"

#include "log.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

/* Nothing at all is granted by it: the reading of a limits file that cannot be read. */
static const struct vgpu_limits grants_nothing = {.magic = VGPU_LIMITS_MAGIC, .abi_version = VGPU_ABI_VERSION};

static pthread_mutex_t borrowing = PTHREAD_MUTEX_INITIALIZER;

/* A state folder that was removed under its container, which has it still, has no name and nothing in it. glibc 2.33
 * has given stat a new symbol, which older ones lack. */
static bool limits_were_removed(void) {
  struct stat status;
  return syscall(SYS_newfstatat, AT_FDCWD, VGPU_CONTAINER_DIR "/etc", &status, 0) == 0 && status.st_nlink == 0;
}

/* The file in the container cannot be named away by the environment. */
static const char *limits_path(void) {
  if (access(VGPU_CONTAINER_LIMITS, F_OK) == 0 || limits_were_removed())
    return VGPU_CONTAINER_LIMITS;
  const char *path = getenv(VGPU_ENV_LIMITS_FILE);
  return path != NULL && path[0] != '\0' ? path : NULL;
}

bool region_has_limits_file(void) {
  return limits_path() != NULL;
}

static const struct vgpu_limits *map_limits(const char *path) {
  int file = open(path, O_RDONLY | O_CLOEXEC);
  if (file < 0) {
    log_line(LOG_ERROR, "limits file %s: %s; nothing is granted", path, strerror(errno));
    return &grants_nothing;
  }
  const struct vgpu_limits *limits = &grants_nothing;
  if (lseek(file, 0, SEEK_END) >= (off_t)sizeof *limits) {
    void *mapping = mmap(NULL, sizeof *limits, PROT_READ, MAP_SHARED, file, 0);
    if (mapping != MAP_FAILED)
      limits = mapping;
  }
  close(file);
  if (limits != &grants_nothing && limits->magic == VGPU_LIMITS_MAGIC && limits->abi_version == VGPU_ABI_VERSION)
    return limits;
  log_line(LOG_ERROR, "limits file %s is damaged or of another version; nothing is granted", path);
  return &grants_nothing;
}

bool region_limits_are_lifted(void) {
  const char *asked = getenv(VGPU_ENV_DISABLE_CONTROL);
  const char *path = limits_path();
  return asked != NULL && strcasecmp(asked, "true") == 0 && path != NULL && map_limits(path)->may_disable != 0;
}

enum place { PLACE_CONTAINER, PLACE_NAMED, PLACE_DEFAULT };

static enum place usage_path(bool in_container, char *path, size_t size) {
  const char *named = getenv(VGPU_ENV_USAGE_FILE);
  enum place place = in_container ? PLACE_CONTAINER : named != NULL && named[0] != '\0' ? PLACE_NAMED : PLACE_DEFAULT;
  if (place == PLACE_DEFAULT)
    snprintf(path, size, "/tmp/vgpurun-%u.usage", (unsigned)geteuid());
  else
    snprintf(path, size, "%s", place == PLACE_CONTAINER ? VGPU_CONTAINER_USAGE : named);
  return place;
}

static struct vgpu_usage *map_own_memory(void) {
  static struct vgpu_usage last_resort; /* untouched pages cost nothing */
  int protection = PROT_READ | PROT_WRITE;
  void *mapping = mmap(NULL, sizeof(struct vgpu_usage), protection, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  return mapping == MAP_FAILED ? &last_resort : mapping;
}

/* Does this process alone lack something? Then it cannot count together with the others, and would have a whole limit
 * of its own beside theirs. */
static bool is_own_shortage(int error) {
  return error == EMFILE || error == ENFILE || error == ENOMEM;
}

static void grant_nothing(struct region *region, const char *path, int error) {
  log_line(LOG_ERROR, "usage file %s: %s; nothing is granted to this process", path, strerror(error));
  region->limits = &grants_nothing;
}

static void keep_usage_to_ourselves(struct region *region, const char *path, const char *reason, int error) {
  if (is_own_shortage(error))
    grant_nothing(region, path, error);
  else
    log_line(LOG_WARNING, "usage file %s: %s; each process is held to the limit by itself", path, reason);
  shared_file_close(&region->file, sizeof *region->usage);
  region->usage = map_own_memory();
}

/* Zero is an empty file; several processes may write the same header at once. */
static void write_header(struct vgpu_usage *usage) {
  __atomic_store_n(&usage->abi_version, VGPU_ABI_VERSION, __ATOMIC_RELEASE);
  __atomic_store_n(&usage->magic, VGPU_USAGE_MAGIC, __ATOMIC_RELEASE);
}

static bool has_header(struct vgpu_usage *usage) {
  uint64_t magic = __atomic_load_n(&usage->magic, __ATOMIC_ACQUIRE);
  if (magic != 0)
    return magic == VGPU_USAGE_MAGIC && __atomic_load_n(&usage->abi_version, __ATOMIC_ACQUIRE) == VGPU_ABI_VERSION;
  write_header(usage);
  return true;
}

/* What nobody uses any more is made anew. One process at a time does so, and the header comes last: a process claims
 * nothing before it has seen it. */
static const char *renew(struct region *region, const char *path) {
  const char *problem = NULL;
  if (!shared_file_lock(&region->file))
    return strerror(errno);
  if (!has_header(region->usage) && shared_file_is_held(&region->file, 0, VGPU_MAX_PROCESSES))
    problem = "processes of another version of vgpurun use it";
  else if (!has_header(region->usage)) {
    memset(&region->usage->abi_version, 0, sizeof *region->usage - offsetof(struct vgpu_usage, abi_version));
    write_header(region->usage);
    log_line(LOG_MESSAGE, "usage file %s was damaged or of another version, and has been emptied", path);
  }
  shared_file_unlock(&region->file);
  return problem;
}

/* In the container the file's path is our own, so that whatever is there was ours. In /tmp anybody could have made the
 * default file before us. */
static const char *open_usage(struct region *region, const char *path, enum place place) {
  uint64_t magic = place == PLACE_CONTAINER ? 0 : VGPU_USAGE_MAGIC;
  uid_t owner = place == PLACE_DEFAULT ? geteuid() : SHARED_FILE_ANY_OWNER;
  if (!shared_file_open(&region->file, path, sizeof *region->usage, magic, owner))
    return errno == EILSEQ  ? "it is no usage file of vgpurun"
           : errno == EPERM ? "it belongs to another user"
                            : strerror(errno);
  region->usage = region->file.memory;
  return has_header(region->usage) ? NULL : renew(region, path);
}

void region_open(struct region *region) {
  const char *limits = limits_path();
  char path[4096];
  enum place place = usage_path(limits != NULL && strcmp(limits, VGPU_CONTAINER_LIMITS) == 0, path, sizeof path);

  *region = (struct region){.slot = -1};
  if (limits != NULL)
    region->limits = map_limits(limits);
  errno = 0;
  const char *problem = open_usage(region, path, place);
  if (problem != NULL)
    keep_usage_to_ourselves(region, path, problem, errno);
}

uint32_t region_pid_namespace(void) {
  char name[64];
  ssize_t length = readlink("/proc/self/ns/pid", name, sizeof name - 1);
  name[length > 0 ? length : 0] = '\0';
  unsigned number = 0;
  return sscanf(name, "pid:[%u]", &number) == 1 ? number : 0;
}

void region_open_alone(struct region *region) {
  *region = (struct region){.usage = map_own_memory(), .file = {.descriptor = -1}, .slot = -1};
}

/* Raises slots_used to cover the slot before anything is counted in it. */
static void announce_slot(struct vgpu_usage *usage, int slot) {
  uint32_t used = __atomic_load_n(&usage->slots_used, __ATOMIC_SEQ_CST);
  while (used <= (uint32_t)slot && !__atomic_compare_exchange_n(&usage->slots_used, &used, (uint32_t)slot + 1, false,
                                                                __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST))
    continue;
}

static void do_without_slot(struct region *region, int error) {
  static const char consequence[] = "the others in this container do not see what this process uses";
  if (is_own_shortage(error))
    grant_nothing(region, region->file.path, error);
  else if (error == EAGAIN)
    log_line(LOG_WARNING, "more than %d processes use the GPU; %s", VGPU_MAX_PROCESSES, consequence);
  else
    log_line(LOG_WARNING, "the usage file cannot be locked: %s; %s", strerror(error), consequence);
}

void region_claim_slot(struct region *region) {
  if (region->file.memory == NULL)
    return;
  int slot = shared_file_claim_slot(&region->file, VGPU_MAX_PROCESSES);
  if (slot < 0) {
    do_without_slot(region, errno);
    return;
  }
  struct vgpu_process_usage *own = &region->usage->processes[slot];
  memset(own, 0, sizeof *own);
  own->pid = (uint32_t)getpid();
  own->pid_namespace = region_pid_namespace();
  announce_slot(region->usage, slot);
  region->slot = slot;
}

/* One thread at a time: a borrowed slot is the process's, so that a second thread would not be kept out of it. */
bool region_slot_is_live(struct region *region, int slot) {
  if (region->file.memory == NULL)
    return false;
  pthread_mutex_lock(&borrowing);
  bool is_dead = shared_file_borrow_slot(&region->file, slot);
  if (is_dead) {
    memset(&region->usage->processes[slot], 0, sizeof region->usage->processes[slot]);
    shared_file_return_slot(&region->file, slot);
  }
  pthread_mutex_unlock(&borrowing);
  return !is_dead;
}

void region_forget(struct region *region) {
  pthread_mutex_init(&borrowing, NULL);
  shared_file_forget(&region->file);
  *region = (struct region){.file = region->file, .slot = -1};
}
