#include "shared/level_files.h"

#include "base/claim.h"
#include "base/log.h"

#include <errno.h>
#include <fcntl.h>
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

/* A state folder that was removed under its container, which has it still, has no name and nothing in it. glibc 2.33
 * has given stat a new symbol, which older ones lack. */
static bool limits_were_removed(void) {
  struct stat status;
  return syscall(SYS_newfstatat, AT_FDCWD, VGPU_CONTAINER_DIR "/etc", &status, 0) == 0 && status.st_nlink == 0;
}

static bool in_container(void) {
  return access(VGPU_CONTAINER_LIMITS, F_OK) == 0 || limits_were_removed();
}

static const char *variable(const char *name) {
  const char *value = getenv(name);
  return value != NULL && value[0] != '\0' ? value : NULL;
}

bool level_files_have_limits(void) {
  return variable(VGPU_ENV_LIMITS_FILE) != NULL || in_container();
}

static const struct vgpu_limits *map_limits(const char *path) {
  int file = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK); /* the environment may name a pipe */
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

/* ---- levels ---------------------------------------------------------------------------------------------------- */

/* The file in the container cannot be named away by the environment: one that is named there is a part of it, or of
 * what it is a part of. */

enum place { PLACE_CONTAINER, PLACE_NAMED, PLACE_DEFAULT };

struct level {
  int number;
  bool is_outer; /* and not the innermost that has a limits file */
  char limits_path[4096];
  const struct vgpu_limits *limits; /* NULL: the environment has them */
  enum place place;                 /* place of its usage file */
};

static bool is_containers(const char *path) {
  struct stat status, containers;
  return syscall(SYS_newfstatat, AT_FDCWD, path, &status, 0) == 0 &&
         syscall(SYS_newfstatat, AT_FDCWD, VGPU_CONTAINER_LIMITS, &containers, 0) == 0 &&
         status.st_dev == containers.st_dev && status.st_ino == containers.st_ino;
}

static void read_level(struct level *level, const char *path) {
  snprintf(level->limits_path, sizeof level->limits_path, "%s", path);
  level->limits = map_limits(path);
  if (level->place != PLACE_CONTAINER && is_containers(path))
    level->place = PLACE_CONTAINER;
}

static void begin_levels(struct level *level) {
  const char *limits = variable(VGPU_ENV_LIMITS_FILE);
  *level = (struct level){.place = variable(VGPU_ENV_USAGE_FILE) != NULL ? PLACE_NAMED : PLACE_DEFAULT};
  if (limits != NULL)
    read_level(level, limits);
  else if (in_container())
    read_level(level, VGPU_CONTAINER_LIMITS);
}

static int folder_length(const struct level *level) {
  const char *end = strrchr(level->limits_path, '/');
  return end == NULL ? 0 : (int)(end + 1 - level->limits_path);
}

/* False at the outermost. */
static bool go_up(struct level *level) {
  char path[sizeof level->limits_path];
  bool has_parent = level->limits != NULL && level->limits->has_parent != 0;
  if (!has_parent && (level->place == PLACE_CONTAINER || !in_container()))
    return false;
  level->number++;
  level->is_outer = true;
  if (level->place == PLACE_DEFAULT)
    level->place = PLACE_NAMED;
  snprintf(path, sizeof path, "%.*s../parent/etc/limits", folder_length(level), level->limits_path);
  read_level(level, has_parent ? path : VGPU_CONTAINER_LIMITS);
  return true;
}

bool level_files_limits_are_lifted(void) {
  static struct level level;
  const char *asked = variable(VGPU_ENV_DISABLE_CONTROL);
  if (asked == NULL || strcasecmp(asked, "true") != 0 || !level_files_have_limits())
    return false;
  bool lifted = true, more = true;
  for (begin_levels(&level); lifted && more; more = level.number < VGPU_MAX_LEVELS && go_up(&level))
    lifted = level.limits->may_disable != 0;
  return lifted;
}

/* The usage file of the innermost share may be anywhere; another one's, and a container's, is beside its limits. */
static void usage_path(const struct level *level, char *path, size_t size) {
  if (level->is_outer || level->place == PLACE_CONTAINER)
    snprintf(path, size, "%.*s../run/usage", folder_length(level), level->limits_path);
  else if (level->place == PLACE_NAMED)
    snprintf(path, size, "%s", variable(VGPU_ENV_USAGE_FILE));
  else
    snprintf(path, size, "/tmp/vgpurun-%u.usage", (unsigned)geteuid());
}

/* In the place of usage files. */
static struct vgpu_device_shared own_devices[VGPU_MAX_LEVELS][VGPU_MAX_DEVICES];

/* ---- the usage file -------------------------------------------------------------------------------------------- */

static void reach_devices(struct level_files *files) {
  struct vgpu_device_shared *own = own_devices[files->level];
  bool shared = shared_file_is_open(&files->usage);
  memset(own, 0, sizeof own_devices[0]);
  for (int i = 0; i < VGPU_MAX_DEVICES; i++)
    files->devices[i] = (struct device_state){
        .file = shared ? &files->usage : NULL,
        .at = (off_t)offsetof(struct vgpu_usage, devices[i]),
        .memory = shared ? NULL : &own[i],
    };
}

/* Does this process alone lack something? Then it cannot count together with the others, and would have a whole limit
 * of its own beside theirs. */
static bool is_own_shortage(int error) {
  return error == EMFILE || error == ENFILE || error == ENOMEM;
}

static void grant_nothing(struct level_files *files, const char *path, const char *reason) {
  log_line(LOG_ERROR, "usage file %s: %s; nothing is granted to this process", path, reason);
  files->limits = &grants_nothing;
}

static void keep_usage_to_ourselves(struct level_files *files, const char *path, const char *reason, int error) {
  if (is_own_shortage(error))
    grant_nothing(files, path, strerror(error));
  else
    log_line(LOG_WARNING, "usage file %s: %s; each process is held to the limit by itself", path, reason);
  shared_file_close(&files->usage);
}

static bool read_start(struct level_files *files, struct usage_start *start) {
  return shared_file_read(&files->usage, start, sizeof *start, 0);
}

/* All but slots_used: several processes may write the same at once. */
static bool write_start(struct level_files *files) {
  const struct usage_start start = {.magic = VGPU_USAGE_MAGIC, .abi_version = VGPU_ABI_VERSION};
  return shared_file_write(&files->usage, &start, offsetof(struct usage_start, slots_used), 0);
}

/* An empty file gets one. */
static bool has_start(struct level_files *files) {
  struct usage_start start;
  if (!read_start(files, &start))
    return false;
  if (start.magic == 0)
    return write_start(files);
  return start.magic == VGPU_USAGE_MAGIC && start.abi_version == VGPU_ABI_VERSION;
}

/* All that comes behind the magic. */
static bool empty(struct level_files *files) {
  static const char zeros[4096];
  size_t size = sizeof(struct vgpu_usage), at = offsetof(struct vgpu_usage, abi_version), part;
  for (; at < size; at += part) {
    part = size - at < sizeof zeros ? size - at : sizeof zeros;
    if (!shared_file_write(&files->usage, zeros, part, (off_t)at))
      return false;
  }
  return true;
}

/* A file that nobody uses any more is made anew. One process at a time does so, and the start comes last: a process
 * claims nothing before it has seen it. */
static const char *renew(struct level_files *files, const char *path) {
  const char *problem = NULL;
  if (!shared_file_lock(&files->usage))
    return strerror(errno);
  if (!has_start(files) && shared_file_is_held(&files->usage, 0, VGPU_MAX_PROCESSES))
    problem = "processes of another version of vgpurun use it";
  else if (!has_start(files)) {
    if (empty(files) && write_start(files))
      log_line(LOG_MESSAGE, "usage file %s was damaged or of another version, and has been emptied", path);
    else
      problem = strerror(errno);
  }
  shared_file_unlock(&files->usage);
  return problem;
}

/* In the container the file's path is our own, so that whatever is there was ours. In /tmp anybody could have made the
 * default file before us. */
static const char *open_usage(struct level_files *files, const char *path, enum place place) {
  uint64_t magic = place == PLACE_CONTAINER ? 0 : VGPU_USAGE_MAGIC;
  uid_t owner = place == PLACE_DEFAULT ? geteuid() : SHARED_FILE_ANY_OWNER;
  if (!shared_file_open(&files->usage, path, sizeof(struct vgpu_usage), magic, owner))
    return errno == EILSEQ  ? "it is not a usage file of vgpurun"
           : errno == EPERM ? "it belongs to another user"
                            : strerror(errno);
  if (place == PLACE_DEFAULT)
    (void)fchmod(files->usage.descriptor, 0600); /* an older version's was open to all */
  return has_start(files) ? NULL : renew(files, path);
}

static void open_level(struct level_files *files, const struct level *level) {
  char path[sizeof level->limits_path];
  usage_path(level, path, sizeof path);
  *files = (struct level_files){.level = level->number, .limits = level->limits, .slot = -1};
  errno = 0;
  const char *problem = open_usage(files, path, level->place);
  if (problem != NULL)
    keep_usage_to_ourselves(files, path, problem, errno);
  reach_devices(files);
}

/* A program that is started in a share with a variable that limits it has a level of its own below: of this process
 * alone, without a usage file. It may have less than the share, and never more. */
static struct vgpu_limits programs_limits;

static void open_level_of_program(struct level_files *files, const struct vgpu_limits *share) {
  programs_limits = grants_nothing;
  programs_limits.device_count = share->device_count;
  for (int i = 0; i < VGPU_MAX_DEVICES; i++)
    level_files_limit_program(i, (struct limits){.memory_bytes = VGPU_NO_MEMORY_LIMIT, .sm_percent = VGPU_NO_SM_LIMIT});
  *files =
      (struct level_files){.is_of_program = true, .limits = &programs_limits, .usage = {.descriptor = -1}, .slot = -1};
  reach_devices(files);
}

void level_files_limit_program(int device_number, struct limits limits) {
  struct vgpu_device_limit *device = &programs_limits.devices[device_number];
  __atomic_store_n(&device->memory_limit_bytes, limits.memory_bytes, __ATOMIC_RELAXED);
  __atomic_store_n(&device->sm_limit_percent, limits.sm_percent, __ATOMIC_RELAXED);
}

int level_files_open(struct level_files levels[VGPU_MAX_LEVELS]) {
  static struct level level;
  begin_levels(&level);
  if (level.limits != NULL && limits_of_every_device_in_environment()) {
    open_level_of_program(&levels[0], level.limits);
    level.number++;
  }
  do
    open_level(&levels[level.number], &level);
  while (go_up(&level) && level.number < VGPU_MAX_LEVELS);
  if (level.number < VGPU_MAX_LEVELS)
    return level.number + 1;
  log_line(LOG_ERROR, "more than %d shares within each other; nothing is granted", VGPU_MAX_LEVELS);
  levels[0].limits = &grants_nothing;
  return VGPU_MAX_LEVELS;
}

uint32_t level_files_pid_namespace(void) {
  char name[64];
  ssize_t length = readlink("/proc/self/ns/pid", name, sizeof name - 1);
  name[length > 0 ? length : 0] = '\0';
  unsigned number = 0;
  return sscanf(name, "pid:[%u]", &number) == 1 ? number : 0;
}

void level_files_open_alone(struct level_files *files) {
  *files = (struct level_files){.usage = {.descriptor = -1}, .slot = -1};
  reach_devices(files);
}

/* ---- slots ----------------------------------------------------------------------------------------------------- */

static bool is_announced(struct level_files *files, int slot) {
  struct usage_start start;
  return read_start(files, &start) && start.slots_used > (uint32_t)slot;
}

/* Raises slots_used to cover the slot before anything is counted in it. Where a stranger keeps the lock, the ledger's
 * repair does so later. */
static void announce_slot(struct level_files *files, int slot) {
  uint32_t slots_used = (uint32_t)slot + 1;
  if (is_announced(files, slot) || !shared_file_lock(&files->usage))
    return;
  if (!is_announced(files, slot))
    shared_file_write(&files->usage, &slots_used, sizeof slots_used, offsetof(struct usage_start, slots_used));
  shared_file_unlock(&files->usage);
}

/* A process that found all slots taken would be seen by no other one: together they would pass the limit. */
static void do_without_slot(struct level_files *files, int error) {
  char all_taken[96];
  snprintf(all_taken, sizeof all_taken, "all %d slots are taken: end another process and start this one again",
           VGPU_MAX_PROCESSES);
  if (error == EAGAIN || is_own_shortage(error))
    grant_nothing(files, files->usage.path, error == EAGAIN ? all_taken : strerror(error));
  else
    log_line(LOG_WARNING,
             "the usage file cannot be locked: %s; the others in this container do not see what this process uses",
             strerror(error));
}

void level_files_claim_slot(struct level_files *files) {
  if (!shared_file_is_open(&files->usage))
    return;
  int slot = shared_file_claim_slot(&files->usage, VGPU_MAX_PROCESSES);
  if (slot < 0) {
    do_without_slot(files, errno);
    return;
  }
  struct vgpu_process_usage own = {.pid = (uint32_t)getpid(), .pid_namespace = level_files_pid_namespace()};
  shared_file_write(&files->usage, &own, sizeof own, (off_t)offsetof(struct vgpu_usage, processes[slot]));
  announce_slot(files, slot);
  files->slot = slot;
}

void level_files_note_sharing(struct level_files *files) {
  static const uint32_t yes = 1;
  if (files->slot >= 0)
    shared_file_write(&files->usage, &yes, sizeof yes,
                      (off_t)offsetof(struct vgpu_usage, processes[files->slot].shares_memory));
}

/* A failure here concerns this process alone. It says so once: the ledger grants nothing then. */
static bool say_failed(const struct level_files *files) {
  static int said;
  log_once(&said, LOG_ERROR, "usage file %s: %s; nothing more is granted to this process", files->usage.path,
           strerror(errno));
  return false;
}

static int reach_usage(void *files_) {
  struct level_files *files = files_;
  return shared_file_is_open(&files->usage) ? shared_file_descriptor(&files->usage) : -1;
}

static bool read_usage(void *files_, int descriptor, void *to, size_t size, size_t at) {
  struct level_files *files = files_;
  memset(to, 0, size);
  return !shared_file_is_open(&files->usage) || shared_file_read_at(descriptor, to, size, (off_t)at) ||
         shared_file_mend(&files->usage) || say_failed(files);
}

static bool write_usage(void *files_, int descriptor, const void *from, size_t size, size_t at) {
  struct level_files *files = files_;
  return !shared_file_is_open(&files->usage) || shared_file_write_at(descriptor, from, size, (off_t)at) ||
         say_failed(files);
}

/* Lets in one thread at a time: a borrowed slot is the process's, so a second thread would not be kept out of it. */
static bool slot_is_live(void *files_, int slot) {
  static const struct vgpu_process_usage nothing;
  static int32_t borrowing;
  struct level_files *files = files_;
  if (!shared_file_is_open(&files->usage))
    return false;
  claim_take(&borrowing);
  bool is_dead = shared_file_borrow_slot(&files->usage, slot);
  if (is_dead) {
    shared_file_write(&files->usage, &nothing, sizeof nothing, (off_t)offsetof(struct vgpu_usage, processes[slot]));
    shared_file_return_slot(&files->usage, slot);
  }
  claim_release(&borrowing);
  return !is_dead;
}

const struct ledger_slots level_files_slots = {reach_usage, read_usage, write_usage, slot_is_live};

void level_files_forget(struct level_files *files) {
  shared_file_forget(&files->usage);
  *files = (struct level_files){.level = files->level, .usage = files->usage, .slot = -1};
  reach_devices(files);
}
