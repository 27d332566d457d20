#include "turns/turns_file.h"

#include "base/claim.h"
#include "base/clock.h"
#include "base/libc_symbols.h"
#include "base/log.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#define OPEN_FLAGS (O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK)

#define CLOCK_STANDS_NS 20000000LL /* no clock of a file system stands still for longer */
#define LATEST_S 9223372035LL      /* in the year 2262: of nanoseconds no more fit in 64 bits */

_Static_assert(sizeof(struct turns_file) == VGPU_TURNS_BYTES, "layout");

/* ---- what stands in the files ------------------------------------------------------------------------------------ */

static off_t place_of(int device, int slot) {
  return (off_t)(((size_t)device * TURNS_SLOTS + (size_t)slot) * sizeof(struct turns_slot));
}

static int read_slots(void *of, int tenant, struct turns_slot *slots) {
  struct turns_peer *peer = &((struct turns_files *)of)->peers[tenant];
  bool is_read = shared_file_read(&peer->file, slots, TURNS_SLOTS * sizeof *slots, place_of(peer->device, 0));
  return is_read || errno == ENODATA ? TURNS_SLOTS : 0;
}

static void write_slot(void *of, int slot, const struct turns_slot *own) {
  struct turns_peer *ours = ((struct turns_files *)of)->peers;
  shared_file_write(&ours->file, own, sizeof *own, place_of(ours->device, slot));
  __sync_synchronize(); /* what is read next is not older */
}

/* ---- other tenants ----------------------------------------------------------------------------------------------- */

/* A tenant's folder, of which nothing is trusted: it may be a link, and any of its files one, a pipe, or anything. */
static int open_folder(const struct turns_files *files, const char *name) {
  char path[PATH_MAX];
  snprintf(path, sizeof path, "%s/%s", files->folder, name);
  return open(path, O_PATH | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
}

static int open_in(int folder, const char *what, int access_mode) {
  struct stat status;
  int file = folder < 0 ? -1 : openat(folder, what, access_mode | OPEN_FLAGS);
  if (file < 0 || (libc_file_status(file, &status) && S_ISREG(status.st_mode)))
    return file;
  close(file);
  return -1;
}

/* Reads a tenant's GPU and terms, which stay as they were where that fails. It may have been moved to another GPU. */
static void read_terms(const struct turns_files *files, int folder, struct turns_peer *peer,
                       struct turns_terms *terms) {
  struct vgpu_limits content;
  int file = open_in(folder, "limits", O_RDONLY);
  if (file < 0)
    return;
  if (shared_file_read_at(file, &content, sizeof content, 0) && content.magic == VGPU_LIMITS_MAGIC &&
      content.abi_version == VGPU_ABI_VERSION) {
    peer->device = limits_find_device(&content, files->uuid);
    struct limits limits = limits_from_file(&content, peer->device);
    *terms = (struct turns_terms){limits.sm_percent, (uint16_t)limits.sm_policy, (uint16_t)limits.priority};
  }
  close(file);
}

/* Bounds what anybody may set as the time of his file. */
static int64_t in_ns(struct timespec time) {
  return min(max(time.tv_sec, 0), LATEST_S) * 1000000000 + time.tv_nsec;
}

/* Returns how long ago somebody wrote its turns. Folders of programs that were killed stay, thousands of them. */
static int64_t idle_ns(const struct turns_files *files, int folder) {
  struct stat status;
  if (syscall(SYS_newfstatat, folder, VGPU_TURNS_NAME, &status, AT_SYMLINK_NOFOLLOW) != 0)
    return INT64_MAX;
  int64_t age_ns = files->now_ns - in_ns(status.st_mtim);
  return age_ns < 0 ? -age_ns : age_ns;
}

static bool open_peer(const struct turns_files *files, struct turns_peer *peer, int folder) {
  char path[PATH_MAX];
  snprintf(path, sizeof path, "%s/%s/%s", files->folder, peer->name, VGPU_TURNS_NAME);
  int file = open_in(folder, VGPU_TURNS_NAME, O_RDONLY);
  if (file < 0 || !shared_file_adopt(&peer->file, file, path))
    return false;
  if (peer->file.inode != files->peers[0].file.inode)
    return true;
  shared_file_close(&peer->file); /* ours */
  return false;
}

static int count_of(const struct turns_files *files, int count, uid_t owner) {
  int found = 0;
  for (int i = 1; i < count; i++)
    found += files->peers[i].owner == owner;
  return found;
}

/* Finds a place for a tenant. Where all are taken, it takes one from the user who has the most, so that many tenants
 * of one user keep out none but that user's own; else -1. The kernel lets nobody make a folder of somebody else's. */
static int find_place(const struct turns_files *files, int count, uid_t owner) {
  int place = 1, most = 0;
  if (count < TURNS_TENANTS)
    return count;
  for (int i = 1; i < count; i++) {
    int theirs = count_of(files, count, files->peers[i].owner);
    if (theirs > most) {
      most = theirs;
      place = i;
    }
  }
  return count_of(files, count, owner) + 1 < most ? place : -1;
}

/* Returns false where it is at work on another GPU, or there is no place for it. */
static bool add(struct turns_files *files, struct turns_tenant *tenants, int *count, int folder,
                struct turns_peer *peer) {
  struct turns_tenant tenant = {.processes = 1};
  int place = find_place(files, *count, peer->owner);
  if (place < 0)
    return false;
  read_terms(files, folder, peer, &tenant.terms);
  if (peer->device < 0 || !open_peer(files, peer, folder))
    return false;
  if (place < *count)
    shared_file_close(&files->peers[place].file);
  else
    ++*count;
  tenant.id = peer->file.inode;
  files->peers[place] = *peer;
  tenants[place] = tenant;
  return true;
}

static bool is_known(const struct turns_files *files, int count, const char *name) {
  for (int i = 1; i < count; i++)
    if (strcmp(files->peers[i].name, name) == 0)
      return true;
  return false;
}

/* The result of a look at a folder. */
struct look {
  bool is_there, is_taken; /* has a place now, or had it */
  uid_t owner;
  int64_t idle_ns;
};

static struct look look_at(struct turns_files *files, struct turns_tenant *tenants, int *count, const char *name) {
  struct look look = {.is_there = true, .is_taken = is_known(files, *count, name)};
  struct turns_peer peer = {.device = -1};
  struct stat status;
  if (look.is_taken)
    return look;
  int folder = strlen(name) < sizeof peer.name ? open_folder(files, name) : -1;
  look.is_there = folder >= 0 && libc_file_status(folder, &status);
  if (look.is_there) {
    strcpy(peer.name, name);
    peer.owner = look.owner = status.st_uid;
    look.idle_ns = idle_ns(files, folder);
    look.is_taken = look.idle_ns < TURNS_PATIENCE_NS && add(files, tenants, count, folder, &peer);
  }
  if (folder >= 0)
    close(folder);
  return look;
}

/* Finds tenants that go on after a pause at once, however many folders there are. */
static int find_rested(struct turns_files *files, struct turns_tenant *tenants, int count) {
  for (int i = 0; i < TURNS_RESTING; i++) {
    char *name = files->resting[i];
    if (*name == '\0')
      continue;
    struct look look = look_at(files, tenants, &count, name);
    if (look.is_taken || !look.is_there)
      *name = '\0';
  }
  return count;
}

/* A folder's entry, as the kernel writes it. */
struct entry {
  uint64_t inode;
  int64_t next;
  uint16_t size;
  uint8_t type;
  char name[];
};

static int visit(struct turns_files *files, struct turns_tenant *tenants, int count, const struct entry *entry) {
  if (entry->name[0] == '.' || (entry->type != DT_DIR && entry->type != DT_UNKNOWN))
    return count;
  uint64_t mark = turns_folder_mark(entry->inode, entry->name);
  if (!turns_folders_is_due(&files->folders, mark))
    return count;
  struct look look = look_at(files, tenants, &count, entry->name);
  if (look.is_there && !look.is_taken)
    turns_folders_note_idle(&files->folders, mark, look.owner, look.idle_ns < TURNS_LATELY_NS);
  return count;
}

/* Returns when the folder of folders has changed, and another time at each look as long as a change may yet have the
 * same. */
static int64_t changed_ns(const struct turns_files *files, int folder) {
  struct stat status;
  int64_t at_ns = libc_file_status(folder, &status) ? in_ns(status.st_mtim) : 0;
  return files->now_ns - at_ns > CLOCK_STANDS_NS ? at_ns : files->now_ns;
}

/* Goes on with the pass, and returns whether there was time for the rest of it. opendir() allocates, and this may run
 * in a program's own allocator. */
static bool visit_rest(struct turns_files *files, struct turns_tenant *tenants, int *count, int folder) {
  _Alignas(struct entry) char entries[4096];
  long size;
  (void)lseek(folder, files->folders.next_entry, SEEK_SET);
  while ((size = syscall(SYS_getdents64, folder, entries, sizeof entries)) > 0)
    for (long at = 0; at < size; at += ((const struct entry *)(entries + at))->size) {
      const struct entry *entry = (const void *)(entries + at);
      *count = visit(files, tenants, *count, entry);
      files->folders.next_entry = entry->next;
      if (!turns_folders_go_on(&files->folders))
        return false;
    }
  return true;
}

/* Finds as many further tenants as there is time for; the next refresh goes on from there. */
static int find_more(struct turns_files *files, struct turns_tenant *tenants, int count) {
  int folder = open(files->folder, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  bool goes_on = true;
  turns_folders_begin_refresh(&files->folders, changed_ns(files, folder));
  while (goes_on)
    goes_on = visit_rest(files, tenants, &count, folder) && turns_folders_end_pass(&files->folders);
  if (folder >= 0)
    close(folder);
  return count;
}

static void rest(struct turns_files *files, const char *name) {
  snprintf(files->resting[files->next_resting], sizeof *files->resting, "%s", name);
  files->next_resting = (files->next_resting + 1) % TURNS_RESTING;
}

/* Keeps the tenants that are on the GPU still, and are at work or owe something. */
static int keep(struct turns_files *files, struct turns_tenant *tenants, int count) {
  int64_t now_ns = clock_now_ns();
  int kept = 1;
  for (int i = 1; i < count; i++) {
    struct turns_peer *peer = &files->peers[i];
    int folder = open_folder(files, peer->name);
    read_terms(files, folder, peer, &tenants[i].terms);
    if (folder >= 0)
      close(folder);
    if (peer->device >= 0 && (tenants[i].processes > 0 || tenants[i].held_zero_at_ns > now_ns)) {
      files->peers[kept] = *peer;
      tenants[kept++] = tenants[i];
    } else {
      rest(files, peer->name);
      shared_file_close(&peer->file);
    }
  }
  return kept;
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
  int error = errno;
  close(file);
  errno = error;
  return made;
}

static bool make_files(int folder) {
  static struct turns_file zeros;
  const struct vgpu_limits limits = {
      .magic = VGPU_LIMITS_MAGIC, .abi_version = VGPU_ABI_VERSION, .device_count = VGPU_MAX_DEVICES};
  return fchmod(folder, 0755) == 0 && make_file(folder, VGPU_TURNS_NAME, &zeros, sizeof zeros) &&
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
    (void)unlinkat(folder, VGPU_TURNS_NAME, 0);
    (void)unlinkat(folder, "limits", 0);
    (void)rmdir(half_made);
  }
  close(folder);
  if (made || is_own_folder(path))
    return true;
  errno = errno == ENOENT ? error : errno; /* else: what is there is not ours */
  return false;
}

static void own_paths(const struct turns_files *files, char folder[256], char path[PATH_MAX]) {
  snprintf(folder, 256, "%s/%s", files->folder, files->own_name);
  snprintf(path, PATH_MAX, "%s/%s", folder, VGPU_TURNS_NAME);
}

static bool has_own_folder(const struct turns_files *files, const char *folder) {
  return is_own_folder(folder) || make_folder(files->folder, folder);
}

/* Finds the path of our file: where a host has made it, or else where we make it. */
static bool own_path(struct turns_files *files, const struct shared_file *usage, char *path) {
  const char *named = getenv(VGPU_ENV_TURNS_FILE);
  bool in_container = access(VGPU_CONTAINER_LIMITS, F_OK) == 0;
  files->folder = in_container ? VGPU_CONTAINER_TENANTS : VGPU_LOCK_DIR;
  if (in_container || (named != NULL && *named != '\0')) {
    snprintf(path, PATH_MAX, "%s", in_container ? VGPU_CONTAINER_TURNS : named);
    return access(path, W_OK) == 0;
  }
  char folder[256];
  snprintf(files->own_name, sizeof files->own_name, "program-%llx-%llx", (unsigned long long)usage->device,
           (unsigned long long)usage->inode);
  own_paths(files, folder, path);
  return has_own_folder(files, folder) && access(path, W_OK) == 0;
}

struct turns_files *turns_files_open(const char *uuid, int device, const struct shared_file *usage) {
  struct turns_files *files = calloc(1, sizeof *files);
  char path[PATH_MAX] = "";
  if (files == NULL)
    return NULL;
  files->uuid = uuid;
  files->peers[0].device = device;
  bool found = own_path(files, usage, path);
  uid_t owner = *files->own_name != '\0' ? geteuid() : SHARED_FILE_ANY_OWNER;
  if (found && shared_file_open(&files->peers[0].file, path, sizeof(struct turns_file), 0, owner))
    return files;
  log_line(LOG_WARNING, "%s: %s; this process and others on the GPU do not take turns", path, strerror(errno));
  free(files);
  return NULL;
}

static void publish(struct turns_files *files, const struct turns_terms *terms) {
  struct vgpu_device_limit own = {
      .sm_limit_percent = terms->percent, .sm_policy = terms->policy, .priority = terms->priority};
  int folder = open_folder(files, files->own_name), file = open_in(folder, "limits", O_RDWR);
  if (folder >= 0)
    close(folder);
  if (file < 0)
    return;
  snprintf(own.uuid, sizeof own.uuid, "%.*s", VGPU_UUID_SIZE - 1, files->uuid);
  size_t at = offsetof(struct vgpu_limits, devices) + (size_t)files->peers[0].device * sizeof own;
  if (shared_file_write_at(file, &own, sizeof own, (off_t)at))
    files->published = *terms;
  close(file);
}

void turns_files_publish(struct turns_files *files, const struct turns_terms *terms) {
  if (*files->own_name == '\0')
    return;
  claim_take(&files->publishing);
  if (memcmp(&files->published, terms, sizeof *terms) != 0)
    publish(files, terms);
  claim_release(&files->publishing);
}

static bool is_removed(struct shared_file *file) {
  struct stat status;
  int descriptor = shared_file_descriptor(file);
  if (descriptor < 0)
    return errno == ENOENT || errno == ESTALE;
  return libc_file_status(descriptor, &status) && status.st_nlink == 0;
}

static void make_again(struct turns_files *files) {
  struct shared_file *own = &files->peers[0].file, made;
  char folder[256], path[PATH_MAX];
  own_paths(files, folder, path);
  if (!has_own_folder(files, folder) || !shared_file_open(&made, path, sizeof(struct turns_file), 0, geteuid()))
    return;
  shared_file_close(own);
  *own = made;
  claim_take(&files->publishing);
  files->published = (struct turns_terms){.policy = UINT16_MAX}; /* nothing yet */
  claim_release(&files->publishing);
}

/* Makes our folder again where somebody has emptied the folder of folders: others look for us there. One that a host
 * has made comes again with the container alone. */
static void mend_own(struct turns_files *files) {
  static int said;
  if (files->now_ns - files->tried_ns < TURNS_PATIENCE_NS || !is_removed(&files->peers[0].file))
    return;
  files->tried_ns = files->now_ns;
  if (*files->own_name != '\0')
    make_again(files);
  else
    log_once(&said, LOG_WARNING,
             "%s has been removed; programs that begin from now on and this one do not take turns on the GPU before it "
             "is started again",
             files->peers[0].file.path);
}

/* ---- refreshes --------------------------------------------------------------------------------------------------- */

/* A thread that is cancelled in here would keep what it has claimed. */
static int begin(struct turns_files *files) {
  struct timespec now;
  int cancel_state;
  pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &cancel_state);
  clock_gettime(CLOCK_REALTIME, &now);
  files->now_ns = in_ns(now);
  return cancel_state;
}

static int list(void *of, struct turns_tenant *tenants, int count) {
  struct turns_files *files = of;
  int cancel_state = begin(files);
  mend_own(files);
  tenants[0].id = files->peers[0].file.inode;
  count = find_rested(files, tenants, keep(files, tenants, count));
  pthread_setcancelstate(cancel_state, NULL);
  return count;
}

static int look(void *of, struct turns_tenant *tenants, int count) {
  struct turns_files *files = of;
  int cancel_state = begin(files);
  count = find_more(files, tenants, count);
  pthread_setcancelstate(cancel_state, NULL);
  return count;
}

const struct turns_system turns_file_system = {clock_now_ns, signals_sleep_ns, list, look, read_slots, write_slot};

void turns_files_forget(struct turns_files *files) {
  for (int i = 0; i < TURNS_TENANTS; i++)
    if (shared_file_is_open(&files->peers[i].file))
      shared_file_forget(&files->peers[i].file);
}

void turns_files_close(struct turns_files *files) {
  shared_file_close(&files->peers[0].file);
  free(files);
}
