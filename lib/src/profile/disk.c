#include "profile/disk.h"

#include "base/libc_symbols.h"
#include "base/log.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#define STEP_BYTES (1UL << 18) /* a larger one keeps the call that needs it longer */
#define MAKE_TRIES 100
#define MOST_INTERRUPTIONS 1000  /* by signals */
#define ADVICE_POPULATE_WRITE 23 /* MADV_POPULATE_WRITE, which older headers lack */

/* The names of hosts and containers are no paths, but nobody checks that. */
static void host_name(char *name, size_t size) {
  if (gethostname(name, size) != 0)
    snprintf(name, size, "host");
  name[size - 1] = '\0';
  for (char *letter = name; *letter != '\0'; letter++)
    if (*letter == '/')
      *letter = '_';
}

/* A name that no other process has, also where containers share the folder and their process numbers. */
static int make(const char *folder, char **path) {
  char host[65];
  host_name(host, sizeof host);
  for (int tries = 0; tries < MAKE_TRIES; tries++) {
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    if (asprintf(path, "%s/%s-%d-%lld%09ld%s", folder, host, (int)getpid(), (long long)now.tv_sec, now.tv_nsec,
                 PROFILE_SUFFIX) < 0) {
      *path = NULL;
      return -1;
    }
    int file = open(*path, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0644);
    if (file >= 0 || errno != EEXIST)
      return file;
    free(*path);
    *path = NULL;
  }
  return -1;
}

/* On the disk before it is stored to: a store into a hole of a full disk would kill the program with SIGBUS. And not
 * beyond the program's own limit for files, which would be SIGXFSZ. */
static bool make_room(int file, size_t bytes) {
  struct rlimit largest;
  if (getrlimit(RLIMIT_FSIZE, &largest) == 0 && largest.rlim_cur < bytes) {
    errno = EFBIG;
    return false;
  }
  int error, tries = 0;
  do
    error = posix_fallocate(file, 0, (off_t)bytes);
  while (error == EINTR && ++tries < MOST_INTERRUPTIONS);
  errno = error;
  return error == 0;
}

/* Stored to for the first time, a page of a file costs three times as much as one that was written before. */
static bool write_zeros(int file, size_t from, size_t to) {
  static char zeros[PROFILE_CHUNK_SIZE];
  for (int tries = 0; from < to && tries < MOST_INTERRUPTIONS;) {
    ssize_t written = pwrite(file, zeros, to - from < sizeof zeros ? to - from : sizeof zeros, (off_t)from);
    if (written > 0)
      from += (size_t)written;
    else if (written == 0 || errno != EINTR)
      return false;
    else
      tries++;
  }
  return from == to;
}

static bool map(struct profile_disk *disk, int file, size_t most_bytes) {
  struct stat status;
  if (!libc_file_status(file, &status) || !make_room(file, PROFILE_CHUNKS_OFFSET))
    return false;
  void *memory = mmap(NULL, most_bytes, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
  if (memory == MAP_FAILED)
    return false;
  disk->file = memory;
  disk->mapped_bytes = most_bytes;
  disk->room_bytes = PROFILE_CHUNKS_OFFSET;
  disk->chunk_count = (uint32_t)((most_bytes - PROFILE_CHUNKS_OFFSET) / PROFILE_CHUNK_SIZE);
  disk->device = status.st_dev;
  disk->inode = status.st_ino;
  return true;
}

bool profile_disk_open(struct profile_disk *disk, const char *folder, size_t most_bytes) {
  *disk = (struct profile_disk){0};
  char *absolute = realpath(folder, NULL); /* the program may change its working folder */
  if (absolute == NULL)
    return false;
  int file = make(absolute, &disk->path);
  bool made = file >= 0;
  bool mapped = made && map(disk, file, most_bytes < PROFILE_DISK_LEAST_BYTES ? PROFILE_DISK_LEAST_BYTES : most_bytes);
  int error = errno;
  if (made && !mapped)
    unlink(disk->path);
  if (made)
    close(file);
  if (!mapped)
    profile_disk_close(disk);
  free(absolute);
  errno = error;
  return mapped;
}

/* No descriptor is kept, which the program might close, and reuse for a file of its own. */
static bool grow(struct profile_disk *disk, size_t bytes) {
  struct stat status;
  int file = open(disk->path, O_RDWR | O_CLOEXEC | O_NOFOLLOW);
  if (file < 0)
    return false;
  errno = ESTALE;
  bool same = libc_file_status(file, &status) && status.st_dev == disk->device && status.st_ino == disk->inode;
  bool grown = same && make_room(file, bytes) && write_zeros(file, disk->room_bytes, bytes);
  int error = errno;
  close(file);
  errno = error;
  return grown;
}

static bool has_room(const struct profile_disk *disk, size_t bytes) {
  return bytes <= __atomic_load_n(&disk->room_bytes, __ATOMIC_ACQUIRE);
}

static bool find_room(struct profile_disk *disk, size_t bytes) {
  static int said;
  size_t whole = (bytes + STEP_BYTES - 1) / STEP_BYTES * STEP_BYTES;
  size_t wanted = whole < disk->mapped_bytes ? whole : disk->mapped_bytes;
  if (!grow(disk, wanted)) {
    log_once(&said, LOG_WARNING, "profile %s: %s; it cannot grow, and keeps only what happened last", disk->path,
             strerror(errno));
    return false;
  }
  /* All its pages at once. Linux before 5.14 knows no such advice; there each costs a fault. */
  madvise((char *)disk->file + disk->room_bytes, wanted - disk->room_bytes, ADVICE_POPULATE_WRITE);
  __atomic_store_n(&disk->room_bytes, wanted, __ATOMIC_RELEASE);
  return true;
}

/* By one thread at a time: another may already have stored records where this one would write zeros. */
static bool make_sure_of_room(struct profile_disk *disk, size_t bytes) {
  int cancel_state;
  pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &cancel_state);
  pthread_mutex_lock(&disk->lock);
  bool room = has_room(disk, bytes) || find_room(disk, bytes);
  pthread_mutex_unlock(&disk->lock);
  pthread_setcancelstate(cancel_state, NULL);
  return room;
}

static void shrink_ring(struct profile_disk *disk) {
  size_t room = __atomic_load_n(&disk->room_bytes, __ATOMIC_ACQUIRE);
  uint32_t chunks = (uint32_t)((room - PROFILE_CHUNKS_OFFSET) / PROFILE_CHUNK_SIZE);
  __atomic_store_n(&disk->chunk_count, chunks, __ATOMIC_RELAXED);
}

struct profile_chunk *profile_disk_chunk(struct profile_disk *disk, uint64_t place) {
  uint32_t count;
  while ((count = __atomic_load_n(&disk->chunk_count, __ATOMIC_RELAXED)) > 0) {
    size_t offset = PROFILE_CHUNKS_OFFSET + place % count * PROFILE_CHUNK_SIZE;
    if (has_room(disk, offset + PROFILE_CHUNK_SIZE) || make_sure_of_room(disk, offset + PROFILE_CHUNK_SIZE))
      return (struct profile_chunk *)((char *)disk->file + offset);
    shrink_ring(disk);
  }
  return NULL;
}

void profile_disk_close(struct profile_disk *disk) {
  if (disk->file != NULL)
    munmap(disk->file, disk->mapped_bytes);
  free(disk->path);
  *disk = (struct profile_disk){0};
}
