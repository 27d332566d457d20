#include "region.h"

#include "log.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

/* Since Linux 3.15, later than the oldest C library's headers. */
#ifndef F_OFD_GETLK
#define F_OFD_GETLK 36
#define F_OFD_SETLK 37
#endif

/* Nothing at all is granted by it: the reading of a limits file that cannot be read. */
static const struct vgpu_limits grants_nothing = {.magic = VGPU_LIMITS_MAGIC, .abi_version = VGPU_ABI_VERSION};

/* The file in the container cannot be named away by the environment. */
static const char *limits_path(void) {
  if (access(VGPU_CONTAINER_LIMITS, F_OK) == 0)
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

static void usage_path(bool in_container, char *path, size_t size) {
  const char *named = getenv(VGPU_ENV_USAGE_FILE);
  if (in_container)
    snprintf(path, size, "%s", VGPU_CONTAINER_USAGE);
  else if (named != NULL && named[0] != '\0')
    snprintf(path, size, "%s", named);
  else
    snprintf(path, size, "/tmp/vgpurun-%u.usage", (unsigned)getuid());
}

/* All bytes are reserved on the disk, since a store into a hole of a full disk would kill the program with SIGBUS. */
static int open_usage_file(const char *path) {
  int file = open(path, O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0666);
  if (file < 0)
    return -1;
  off_t size = lseek(file, 0, SEEK_END);
  if (size < (off_t)sizeof(struct vgpu_usage)) {
    /* Other users of the container write it too, whatever our umask. Only the owner may and need do this. */
    (void)fchmod(file, 0666);
    int failed = fallocate(file, 0, 0, sizeof(struct vgpu_usage));
    if (failed && errno == EOPNOTSUPP)
      failed = ftruncate(file, sizeof(struct vgpu_usage));
    if (failed) {
      int error = errno;
      close(file);
      errno = error;
      return -1;
    }
  }
  return file;
}

/* Mapped through a file description of its own: a mapping keeps its description, and with it the description's locks,
 * alive; a forked child, which keeps the mapping, would keep its parent's slot. */
static struct vgpu_usage *map_usage_file(const char *path) {
  int file = open(path, O_RDWR | O_CLOEXEC | O_NOFOLLOW);
  if (file < 0)
    return NULL;
  void *mapping = mmap(NULL, sizeof(struct vgpu_usage), PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
  int error = errno;
  close(file);
  errno = error;
  return mapping == MAP_FAILED ? NULL : mapping;
}

static struct vgpu_usage *map_own_memory(void) {
  static struct vgpu_usage last_resort; /* untouched pages cost nothing */
  int protection = PROT_READ | PROT_WRITE;
  void *mapping = mmap(NULL, sizeof(struct vgpu_usage), protection, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  return mapping == MAP_FAILED ? &last_resort : mapping;
}

/* Zero is an empty file; several processes may write the same header at once. */
static bool check_usage_header(struct vgpu_usage *usage) {
  uint64_t magic = __atomic_load_n(&usage->magic, __ATOMIC_RELAXED);
  if (magic != 0)
    return magic == VGPU_USAGE_MAGIC && usage->abi_version == VGPU_ABI_VERSION;
  usage->abi_version = VGPU_ABI_VERSION;
  __atomic_store_n(&usage->magic, VGPU_USAGE_MAGIC, __ATOMIC_RELEASE);
  return true;
}

static void keep_usage_to_ourselves(struct region *region, const char *path, const char *reason) {
  log_line(LOG_WARNING, "usage file %s: %s; each process is held to the limit by itself", path, reason);
  if (region->file >= 0)
    close(region->file);
  region->file = -1;
  region->usage = map_own_memory();
}

void region_open(struct region *region) {
  const char *limits = limits_path();
  char path[4096];
  usage_path(limits != NULL && strcmp(limits, VGPU_CONTAINER_LIMITS) == 0, path, sizeof path);

  *region = (struct region){.file = open_usage_file(path), .slot = -1};
  if (limits != NULL)
    region->limits = map_limits(limits);
  if (region->file < 0) {
    keep_usage_to_ourselves(region, path, strerror(errno));
    return;
  }
  region->usage = map_usage_file(path);
  if (region->usage == NULL)
    keep_usage_to_ourselves(region, path, strerror(errno));
  else if (!check_usage_header(region->usage)) {
    munmap(region->usage, sizeof *region->usage);
    keep_usage_to_ourselves(region, path, "it was not written by this version of vgpurun");
  }
}

static struct flock slot_lock(int slot, short type) {
  return (struct flock){
      .l_type = type, .l_whence = SEEK_SET, .l_start = (off_t)(VGPU_SLOT_LOCK_OFFSET + (unsigned)slot), .l_len = 1};
}

/* Raises slots_used to cover the slot before anything is counted in it. */
static void announce_slot(struct vgpu_usage *usage, int slot) {
  uint32_t used = __atomic_load_n(&usage->slots_used, __ATOMIC_SEQ_CST);
  while (used <= (uint32_t)slot && !__atomic_compare_exchange_n(&usage->slots_used, &used, (uint32_t)slot + 1, false,
                                                                __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST))
    continue;
}

void region_claim_slot(struct region *region) {
  int slot = 0;
  if (region->file >= 0) {
    struct flock lock = slot_lock(slot, F_WRLCK);
    while (slot < VGPU_MAX_PROCESSES && fcntl(region->file, F_OFD_SETLK, &lock) != 0)
      lock = slot_lock(++slot, F_WRLCK);
    if (slot == VGPU_MAX_PROCESSES) {
      munmap(region->usage, sizeof *region->usage);
      keep_usage_to_ourselves(region, "of this container", "more processes than it has room for");
      slot = 0;
    }
  }
  struct vgpu_process_usage *own = &region->usage->processes[slot];
  memset(own, 0, sizeof *own);
  own->pid = (uint32_t)getpid();
  announce_slot(region->usage, slot);
  region->slot = slot;
}

bool region_slot_is_live(const struct region *region, int slot) {
  if (slot == region->slot)
    return true;
  if (region->file < 0)
    return false;
  struct flock lock = slot_lock(slot, F_WRLCK);
  /* When in doubt it lives: its bytes go on counting. */
  return fcntl(region->file, F_OFD_GETLK, &lock) != 0 || lock.l_type != F_UNLCK;
}

void region_forget(struct region *region) {
  if (region->file >= 0)
    close(region->file);
  /* The mappings stay: another thread of the parent may have been using them when it forked, and they cost nothing. */
  *region = (struct region){.file = -1, .slot = -1};
}
