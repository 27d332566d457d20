#include "state_file.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "../src/abi.h"
#include "config.h"

#ifndef F_OFD_GETLK /* glibc 2.17 does not name them yet */
#define F_OFD_GETLK 36
#define F_OFD_SETLK 37
#define F_OFD_SETLKW 38
#endif

#define OPEN_FLAGS (O_RDWR | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK)

static struct {
  dev_t device;
  ino_t inode;
  char path[4096];
} opened;

/* A named file is shared with containers whose processes have other user ids; the default one is the user's own, and of
 * this version. */
static const char *choose_path(char *buffer, size_t size, mode_t *mode) {
  const char *named = getenv("VGPUSIM_STATE");
  if (!named || !*named)
    named = sim_config.state_file;
  *mode = *named ? 0666 : 0600;
  if (*named)
    return named;
  snprintf(buffer, size, "/tmp/vgpusim-%lu-" VGPU_VERSION ".state", (unsigned long)getuid());
  return buffer;
}

static int open_or_create(const char *path, mode_t mode) {
  for (;;) {
    int fd = open(path, OPEN_FLAGS);
    if (fd >= 0 || errno != ENOENT)
      return fd;
    fd = open(path, OPEN_FLAGS | O_CREAT | O_EXCL, mode);
    if (fd >= 0 && fchmod(fd, mode) == 0) /* the mode, whatever the umask */
      return fd;
    if (fd < 0 && errno != EEXIST)
      return -1;
    if (fd >= 0)
      close(fd);
  }
}

static bool has_magic(int fd, uint64_t magic) {
  uint64_t first = 0;
  ssize_t length = pread(fd, &first, sizeof first, 0);
  return length == 0 || (length == sizeof first && (first == 0 || first == magic));
}

/* glibc 2.33 has given fstat a new symbol, which older ones lack. */
static bool status_of(int fd, struct stat *status) {
  return syscall(SYS_fstat, fd, status) == 0;
}

/* A file of the program's own may have got the number since. */
static bool is_opened(int fd) {
  struct stat status;
  return fd >= 0 && status_of(fd, &status) && status.st_dev == opened.device && status.st_ino == opened.inode;
}

static void remember(int fd, const char *path) {
  struct stat status;
  if (!status_of(fd, &status))
    return;
  opened.device = status.st_dev;
  opened.inode = status.st_ino;
  snprintf(opened.path, sizeof opened.path, "%s", path);
}

const char *state_file_path(void) {
  return opened.path;
}

int state_file_check(int fd) {
  if (is_opened(fd))
    return fd;
  int again = open(opened.path, OPEN_FLAGS);
  if (again < 0 || is_opened(again))
    return again;
  close(again);
  return -1;
}

void state_file_close(int fd) {
  if (is_opened(fd))
    close(fd);
}

bool state_file_reserve(int fd, size_t start, size_t length) {
  int failed;
  do
    failed = fallocate(fd, 0, (off_t)start, (off_t)length);
  while (failed && errno == EINTR);
  return !failed || errno == EOPNOTSUPP || errno == ENOSYS;
}

/* NULL, or why the file cannot be the state. */
static const char *prepare(int fd, size_t size_bytes, uint64_t magic, mode_t mode) {
  /* In /tmp anybody could have made the default file before us; only its owner may change its mode. */
  if (mode == 0600 && fchmod(fd, mode) != 0)
    return "belongs to another user";
  off_t size = lseek(fd, 0, SEEK_END);
  if (size < 0)
    return strerror(errno);
  if (!has_magic(fd, magic))
    return "is not a state file of this version";
  return size < (off_t)size_bytes && ftruncate(fd, (off_t)size_bytes) != 0 ? strerror(errno) : NULL;
}

int state_file_open(size_t size_bytes, uint64_t magic, const char **path) {
  static char default_path[64];
  mode_t mode;
  *path = choose_path(default_path, sizeof default_path, &mode);
  if (**path != '/') {
    complain("VGPUSIM_STATE is not an absolute path: %s", *path);
    return -1;
  }
  int fd = open_or_create(*path, mode);
  if (fd < 0) {
    complain("%s: %s", *path, strerror(errno));
    return -1;
  }
  const char *problem = prepare(fd, size_bytes, magic, mode);
  if (!problem) {
    remember(fd, *path);
    return fd;
  }
  complain("%s: %s; remove it, or set VGPUSIM_STATE to another path", *path, problem);
  close(fd);
  return -1;
}

static struct flock byte_range(short type, long long byte) {
  return (struct flock){.l_type = type, .l_whence = SEEK_SET, .l_start = (off_t)byte, .l_len = 1};
}

void state_file_lock_byte(int fd, long long byte) {
  struct flock range = byte_range(F_WRLCK, byte);
  while (fcntl(fd, F_OFD_SETLKW, &range) != 0 && errno == EINTR)
    continue;
}

void state_file_unlock_byte(int fd, long long byte) {
  struct flock range = byte_range(F_UNLCK, byte);
  fcntl(fd, F_OFD_SETLK, &range);
}

bool state_file_try_lock(int fd, long long byte) {
  struct flock range = byte_range(F_WRLCK, byte);
  return fcntl(fd, F_OFD_SETLK, &range) == 0;
}

bool state_file_is_locked(int fd, long long byte) {
  struct flock range = byte_range(F_WRLCK, byte);
  return fcntl(fd, F_OFD_GETLK, &range) != 0 || range.l_type != F_UNLCK; /* in doubt it is */
}

void state_file_mark_pid(int fd, long long byte) {
  struct flock range = byte_range(F_WRLCK, byte);
  fcntl(fd, F_SETLK, &range);
}

long state_file_marked_pid(int fd, long long byte) {
  struct flock range = byte_range(F_WRLCK, byte);
  if (fcntl(fd, F_GETLK, &range) != 0 || range.l_type == F_UNLCK)
    return -1;
  return range.l_pid;
}
