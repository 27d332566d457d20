#include "region.h"

#include "log.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

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
  shared_file_close(&region->file, sizeof *region->usage);
  region->usage = map_own_memory();
}

void region_open(struct region *region) {
  const char *limits = limits_path();
  char path[4096];
  usage_path(limits != NULL && strcmp(limits, VGPU_CONTAINER_LIMITS) == 0, path, sizeof path);

  *region = (struct region){.slot = -1};
  if (limits != NULL)
    region->limits = map_limits(limits);
  if (!shared_file_open(&region->file, path, sizeof *region->usage)) {
    keep_usage_to_ourselves(region, path, strerror(errno));
    return;
  }
  region->usage = region->file.memory;
  if (!check_usage_header(region->usage))
    keep_usage_to_ourselves(region, path, "it was not written by this version of vgpurun");
}

/* Raises slots_used to cover the slot before anything is counted in it. */
static void announce_slot(struct vgpu_usage *usage, int slot) {
  uint32_t used = __atomic_load_n(&usage->slots_used, __ATOMIC_SEQ_CST);
  while (used <= (uint32_t)slot && !__atomic_compare_exchange_n(&usage->slots_used, &used, (uint32_t)slot + 1, false,
                                                                __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST))
    continue;
}

void region_claim_slot(struct region *region) {
  if (region->file.memory == NULL)
    return;
  int slot = shared_file_claim_slot(&region->file, VGPU_MAX_PROCESSES);
  if (slot < 0) {
    log_line(LOG_WARNING,
             "more than %d processes use the GPU in this container; the others do not see what this one uses",
             VGPU_MAX_PROCESSES);
    return;
  }
  struct vgpu_process_usage *own = &region->usage->processes[slot];
  memset(own, 0, sizeof *own);
  own->pid = (uint32_t)getpid();
  announce_slot(region->usage, slot);
  region->slot = slot;
}

bool region_slot_is_live(const struct region *region, int slot) {
  return region->file.memory != NULL && shared_file_slot_is_held(&region->file, slot);
}

void region_forget(struct region *region) {
  shared_file_forget(&region->file);
  *region = (struct region){.file = region->file, .slot = -1};
}
