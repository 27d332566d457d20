#include "tenants/presence.h"

#include "base/clock.h"
#include "base/libc_symbols.h"
#include "base/log.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

/* A search among the folders takes as long; on a slow disk it is of one at least. */
#define SEARCH_NS 1000000LL
/* A tenant that pauses is known for so long: it is seen at once when it goes on. */
#define KEPT_NS 60000000000LL

_Static_assert(sizeof(struct presence_file) == VGPU_PRESENCE_BYTES, "layout");

/* ---- what stands in the files ------------------------------------------------------------------------------------ */

static off_t place_of(int device, int slot) {
  return (off_t)(((size_t)device * PRESENCE_SLOTS + (size_t)slot) * sizeof(int64_t));
}

/* Any number may stand in a file. */
static bool is_recent(int64_t at_ns, int64_t now_ns) {
  return at_ns > now_ns - PRESENCE_LASTS_NS && at_ns <= now_ns + PRESENCE_LASTS_NS;
}

int presence_count(struct presence *presence, int number, int64_t now_ns) {
  struct tenant *tenant = &presence->tenants[number];
  int64_t seen_ns[PRESENCE_SLOTS];
  int count = 0;
  if (!shared_file_read(&tenant->file, seen_ns, sizeof seen_ns, place_of(tenant->device, 0)) && errno != ENODATA)
    return 0;
  for (int i = 0; i < PRESENCE_SLOTS; i++)
    if (is_recent(seen_ns[i], now_ns) && (number > 0 || i != presence->slot)) {
      tenant->seen_ns = max(tenant->seen_ns, min(seen_ns[i], now_ns));
      count++;
    }
  return count;
}

void presence_note(struct presence *presence, int64_t now_ns) {
  struct tenant *own = &presence->tenants[0];
  shared_file_write(&own->file, &now_ns, sizeof now_ns, place_of(own->device, presence->slot));
}

/* ---- other tenants ----------------------------------------------------------------------------------------------- */

/* A tenant's folder, of which nothing is trusted: it may be a link, and any of its files one, a pipe, or anything. */
static int open_folder(const struct presence *presence, const char *name) {
  char path[PATH_MAX];
  snprintf(path, sizeof path, "%s/%s", presence->folder, name);
  return open(path, O_PATH | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
}

static int open_in(int folder, const char *what, int access_mode) {
  struct stat status;
  int file = folder < 0 ? -1 : openat(folder, what, access_mode | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
  if (file < 0 || (libc_file_status(file, &status) && S_ISREG(status.st_mode)))
    return file;
  close(file);
  return -1;
}

/* Reads a tenant's GPU and terms, which stay as they were where that fails. It may have been moved to another GPU. */
static void read_terms(const struct presence *presence, int folder, struct tenant *tenant) {
  struct vgpu_limits content;
  int file = open_in(folder, "limits", O_RDONLY);
  if (file < 0)
    return;
  if (shared_file_read_at(file, &content, sizeof content, 0) && content.magic == VGPU_LIMITS_MAGIC &&
      content.abi_version == VGPU_ABI_VERSION) {
    tenant->device = limits_find_device(&content, presence->uuid);
    struct limits limits = limits_from_file(&content, tenant->device);
    tenant->terms = (struct tenant_terms){limits.sm_percent, (uint16_t)limits.sm_policy, (uint16_t)limits.priority};
  }
  close(file);
}

/* Tells whether somebody wrote there lately: folders of programs that were killed stay, thousands of them. Any number
 * may stand there, too. */
static bool is_at_work(int folder) {
  struct stat status;
  time_t now_s = time(NULL);
  return syscall(SYS_newfstatat, folder, VGPU_PRESENCE_NAME, &status, AT_SYMLINK_NOFOLLOW) == 0 &&
         status.st_mtime >= now_s - 1 && status.st_mtime <= now_s + 1;
}

static bool open_file(const struct presence *presence, struct tenant *tenant, int folder) {
  char path[PATH_MAX];
  snprintf(path, sizeof path, "%s/%s/%s", presence->folder, tenant->name, VGPU_PRESENCE_NAME);
  int file = open_in(folder, VGPU_PRESENCE_NAME, O_RDONLY);
  if (file < 0 || !shared_file_adopt(&tenant->file, file, path))
    return false;
  if (tenant->file.inode != presence->tenants[0].file.inode)
    return true;
  shared_file_close(&tenant->file); /* ours */
  return false;
}

static int count_of(const struct presence *presence, uid_t owner) {
  int found = 0;
  for (int i = 1; i < presence->count; i++)
    found += presence->tenants[i].owner == owner;
  return found;
}

/* Finds a place for a tenant. Where all are taken, it is that of one which pauses, or else of the user who has the
 * most, so that many tenants of one user keep out none but that user's own; else 0. The kernel lets nobody make a
 * folder of somebody else's. */
static int find_place(const struct presence *presence, uid_t owner, int64_t now_ns) {
  int place = 0, most = count_of(presence, owner) + 1;
  if (presence->count < PRESENCE_TENANTS)
    return presence->count;
  for (int i = 1; i < presence->count; i++) {
    const struct tenant *tenant = &presence->tenants[i];
    int theirs = is_recent(tenant->seen_ns, now_ns) ? count_of(presence, tenant->owner) : PRESENCE_TENANTS + 1;
    if (theirs > most) {
      most = theirs;
      place = i;
    }
  }
  return place;
}

/* Adds the tenant unless it is at work on another GPU, or there is no place for it. */
static void add(struct presence *presence, struct tenant *tenant, int folder, int64_t now_ns) {
  int place = find_place(presence, tenant->owner, now_ns);
  if (place == 0)
    return;
  read_terms(presence, folder, tenant);
  if (tenant->device < 0 || !open_file(presence, tenant, folder))
    return;
  if (place < presence->count)
    shared_file_close(&presence->tenants[place].file);
  else
    presence->count++;
  presence->tenants[place] = *tenant;
}

static bool is_known(const struct presence *presence, const char *name) {
  for (int i = 1; i < presence->count; i++)
    if (strcmp(presence->tenants[i].name, name) == 0)
      return true;
  return false;
}

static void look_at(struct presence *presence, const char *name, int64_t now_ns) {
  struct tenant tenant = {.device = -1, .seen_ns = now_ns};
  struct stat status;
  bool is_new = strlen(name) < sizeof tenant.name && !is_known(presence, name);
  int folder = is_new ? open_folder(presence, name) : -1;
  if (folder >= 0 && is_at_work(folder) && libc_file_status(folder, &status)) {
    strcpy(tenant.name, name);
    tenant.owner = status.st_uid;
    add(presence, &tenant, folder, now_ns);
  }
  if (folder >= 0)
    close(folder);
}

static bool is_removed(struct shared_file *file) {
  struct stat status;
  int descriptor = shared_file_descriptor(file);
  if (descriptor < 0)
    return errno == ENOENT || errno == ESTALE;
  return libc_file_status(descriptor, &status) && status.st_nlink == 0;
}

/* ---- our own ----------------------------------------------------------------------------------------------------- */

/* Anybody may put links in that folder before us, and its owner at any time: what is not our own is left alone. */
static int open_own_folder(const char *path) {
  struct stat status;
  int folder = open(path, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
  if (folder < 0 || (libc_file_status(folder, &status) && status.st_uid == geteuid()))
    return folder;
  close(folder);
  errno = EPERM;
  return -1;
}

static bool is_own_folder(const char *path) {
  int folder = open_own_folder(path);
  if (folder >= 0)
    close(folder);
  return folder >= 0;
}

/* All of it is written, so that a full disk shows now. */
static bool make_file(int folder, const char *name, const void *content, size_t size) {
  int file = openat(folder, name, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0644);
  if (file < 0)
    return false;
  bool made = fchmod(file, 0644) == 0 && shared_file_write_at(file, content, size, 0); /* whatever the umask */
  close(file);
  return made;
}

static bool make_files(int folder) {
  static struct presence_file zeros;
  const struct vgpu_limits limits = {
      .magic = VGPU_LIMITS_MAGIC, .abi_version = VGPU_ABI_VERSION, .device_count = VGPU_MAX_DEVICES};
  return fchmod(folder, 0755) == 0 && make_file(folder, VGPU_PRESENCE_NAME, &zeros, sizeof zeros) &&
         make_file(folder, "limits", &limits, sizeof limits);
}

/* Makes the folder, which gets its name when it is whole. Another process of ours may have made it meanwhile. */
static bool make_folder(const char *all, const char *path) {
  char half_made[PATH_MAX];
  if (mkdir(all, 01777) == 0)
    (void)chmod(all, 01777);
  snprintf(half_made, sizeof half_made, "%s/.%d-%llx", all, (int)getpid(), (unsigned long long)clock_now_ns());
  int folder = mkdir(half_made, 0755) == 0 ? open_own_folder(half_made) : -1;
  if (folder < 0)
    return false;
  bool made = make_files(folder) && rename(half_made, path) == 0;
  int error = errno;
  if (!made) {
    (void)unlinkat(folder, VGPU_PRESENCE_NAME, 0);
    (void)unlinkat(folder, "limits", 0);
    (void)rmdir(half_made);
  }
  close(folder);
  if (made || is_own_folder(path))
    return true;
  errno = errno == ENOENT ? error : errno; /* else: what is there is not ours */
  return false;
}

/* Opens our file, which a host has made, or else we do. */
static bool open_own(const struct presence *presence, struct shared_file *file) {
  bool is_made_here = *presence->own_name != '\0';
  char folder[256];
  snprintf(folder, sizeof folder, "%s/%s", presence->folder, presence->own_name);
  return (!is_made_here || is_own_folder(folder) || make_folder(presence->folder, folder)) &&
         access(presence->path, W_OK) == 0 &&
         shared_file_open(file, presence->path, sizeof(struct presence_file), 0,
                          is_made_here ? geteuid() : SHARED_FILE_ANY_OWNER);
}

static void name_own(struct presence *presence, const struct shared_file *usage) {
  const char *named = getenv(VGPU_ENV_PRESENCE_FILE);
  bool in_container = access(VGPU_CONTAINER_LIMITS, F_OK) == 0;
  presence->folder = in_container ? VGPU_CONTAINER_TENANTS : VGPU_LOCK_DIR;
  if (in_container || (named != NULL && *named != '\0')) {
    snprintf(presence->path, sizeof presence->path, "%s", in_container ? VGPU_CONTAINER_PRESENCE : named);
    return;
  }
  snprintf(presence->own_name, sizeof presence->own_name, "program-%llx-%llx", (unsigned long long)usage->device,
           (unsigned long long)usage->inode);
  snprintf(presence->path, sizeof presence->path, "%s/%s/%s", presence->folder, presence->own_name, VGPU_PRESENCE_NAME);
}

bool presence_open(struct presence *presence, const char *uuid, int device, const struct shared_file *usage, int slot) {
  *presence = (struct presence){.uuid = uuid, .slot = slot, .count = 1, .tenants = {{.device = device}}};
  name_own(presence, usage);
  if (open_own(presence, &presence->tenants[0].file))
    return true;
  log_line(LOG_WARNING, "%s: %s; this process and others on the GPU do not know of each other", presence->path,
           strerror(errno));
  return false;
}

void presence_publish(struct presence *presence, const struct tenant_terms *terms) {
  if (*presence->own_name == '\0' || memcmp(&presence->published, terms, sizeof *terms) == 0)
    return;
  struct vgpu_device_limit own = {
      .sm_limit_percent = terms->percent, .sm_policy = terms->policy, .priority = terms->priority};
  int folder = open_folder(presence, presence->own_name), file = open_in(folder, "limits", O_RDWR);
  if (folder >= 0)
    close(folder);
  if (file < 0)
    return;
  snprintf(own.uuid, sizeof own.uuid, "%.*s", VGPU_UUID_SIZE - 1, presence->uuid);
  size_t at = offsetof(struct vgpu_limits, devices) + (size_t)presence->tenants[0].device * sizeof own;
  if (shared_file_write_at(file, &own, sizeof own, (off_t)at))
    presence->published = *terms;
  close(file);
}

/* Makes our folder again where somebody has emptied the folder of folders: others look for us there. One that a host
 * has made comes again with the container alone. */
static void mend_own(struct presence *presence) {
  static int said;
  struct shared_file made;
  if (!is_removed(&presence->tenants[0].file))
    return;
  if (*presence->own_name == '\0') {
    log_once(&said, LOG_WARNING,
             "%s has been removed; programs that begin from now on and this one do not know of each other before it "
             "is started again",
             presence->path);
  } else if (open_own(presence, &made)) {
    shared_file_close(&presence->tenants[0].file);
    presence->tenants[0].file = made;
    presence->published = (struct tenant_terms){.policy = UINT16_MAX}; /* nothing yet */
  }
}

/* ---- looks ------------------------------------------------------------------------------------------------------- */

/* Keeps the tenants that are on the GPU still, and were at work not long ago. */
void presence_refresh(struct presence *presence, int64_t now_ns) {
  int kept = 1;
  mend_own(presence);
  for (int i = 1; i < presence->count; i++) {
    struct tenant *tenant = &presence->tenants[i];
    int folder = open_folder(presence, tenant->name);
    read_terms(presence, folder, tenant);
    if (folder >= 0 && tenant->device >= 0 && now_ns - tenant->seen_ns < KEPT_NS && !is_removed(&tenant->file))
      presence->tenants[kept++] = *tenant;
    else
      shared_file_close(&tenant->file);
    if (folder >= 0)
      close(folder);
  }
  presence->count = kept;
}

/* opendir() allocates, and this may run in a program's own allocator. */
void presence_search(struct presence *presence) {
  _Alignas(struct dirent) char entries[4096]; /* as the kernel writes them, which is the C library's structure */
  int64_t now_ns = clock_now_ns(), end_ns = now_ns + SEARCH_NS;
  int folder = open(presence->folder, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  long size = 0;
  (void)lseek(folder, presence->next_entry, SEEK_SET);
  while (now_ns <= end_ns && (size = syscall(SYS_getdents64, folder, entries, sizeof entries)) > 0)
    for (long at = 0; at < size && now_ns <= end_ns; now_ns = clock_now_ns()) {
      const struct dirent *entry = (const void *)(entries + at);
      at += entry->d_reclen;
      presence->next_entry = entry->d_off;
      if (entry->d_name[0] != '.' && (entry->d_type == DT_DIR || entry->d_type == DT_UNKNOWN))
        look_at(presence, entry->d_name, now_ns);
    }
  if (size <= 0)
    presence->next_entry = 0;
  if (folder >= 0)
    close(folder);
}

void presence_forget(struct presence *presence) {
  for (int i = 0; i < presence->count; i++)
    shared_file_forget(&presence->tenants[i].file);
}
