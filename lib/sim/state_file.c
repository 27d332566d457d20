#include "state_file.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "config.h"

#ifndef F_OFD_GETLK /* glibc 2.17 does not name them yet */
#define F_OFD_GETLK 36
#define F_OFD_SETLK 37
#define F_OFD_SETLKW 38
#endif

/* A named file is shared with containers whose processes have other user ids; the default one is the user's own. */
static const char *choose_path(char *buffer, size_t size, mode_t *mode) {
  const char *named = getenv("VGPUSIM_STATE");
  if (!named || !*named)
    named = sim_config.state_file;
  *mode = *named ? 0666 : 0600;
  if (*named)
    return named;
  snprintf(buffer, size, "/tmp/vgpusim-%lu.state", (unsigned long)getuid());
  return buffer;
}

static int open_or_create(const char *path, mode_t mode) {
  const int flags = O_RDWR | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK;
  for (;;) {
    int fd = open(path, flags);
    if (fd >= 0 || errno != ENOENT)
      return fd;
    fd = open(path, flags | O_CREAT | O_EXCL, mode);
    if (fd >= 0 && fchmod(fd, mode) == 0) /* the mode, whatever the umask */
      return fd;
    if (fd < 0 && errno != EEXIST)
      return -1;
    if (fd >= 0)
      close(fd);
  }
}

static bool is_ours(int fd, uint64_t magic) {
  uint64_t first = 0;
  ssize_t length = pread(fd, &first, sizeof first, 0);
  return length == 0 || (length == sizeof first && (first == 0 || first == magic));
}

/* NULL, or why the file cannot be the state. */
static const char *prepare(int fd, size_t size_bytes, uint64_t magic, mode_t mode) {
  /* In /tmp anybody could have made the default file before us; only its owner may change its mode. */
  if (mode == 0600 && fchmod(fd, mode) != 0)
    return "belongs to another user";
  off_t size = lseek(fd, 0, SEEK_END);
  if (size < 0)
    return strerror(errno);
  if (!is_ours(fd, magic))
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
  if (!problem)
    return fd;
  complain("%s: %s; remove it, or set VGPUSIM_STATE to another path", *path, problem);
  close(fd);
  return -1;
}

static struct flock byte_range(short type, long long byte) {
  return (struct flock){.l_type = type, .l_whence = SEEK_SET, .l_start = (off_t)byte, .l_len = 1};
}

void state_file_lock(int fd) {
  struct flock range = byte_range(F_WRLCK, STATE_LOCK_ALL);
  while (fcntl(fd, F_OFD_SETLKW, &range) != 0 && errno == EINTR)
    continue;
}

void state_file_unlock(int fd) {
  struct flock range = byte_range(F_UNLCK, STATE_LOCK_ALL);
  fcntl(fd, F_OFD_SETLK, &range);
}

bool state_file_try_lock(int fd, long long byte) {
  struct flock range = byte_range(F_WRLCK, byte);
  return fcntl(fd, F_OFD_SETLK, &range) == 0;
}

bool state_file_is_locked(int fd, long long byte) {
  struct flock range = byte_range(F_WRLCK, byte);
  return fcntl(fd, F_OFD_GETLK, &range) == 0 && range.l_type != F_UNLCK;
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
