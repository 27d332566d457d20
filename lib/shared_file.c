#include "shared_file.h"

#include "abi.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

/* Since Linux 3.15, later than the oldest C library's headers. */
#ifndef F_OFD_GETLK
#define F_OFD_GETLK 36
#define F_OFD_SETLK 37
#endif

#define OPEN_FLAGS (O_RDWR | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK)
#define LOWEST_DESCRIPTOR 100 /* out of the way of programs that use low numbers of their choice */

/* First without O_CREAT: in a sticky folder such as /tmp the kernel refuses that for another user's file
 * (fs.protected_regular). */
static int open_or_make(const char *path) {
  int file = open(path, OPEN_FLAGS);
  if (file < 0 && errno == ENOENT)
    file = open(path, OPEN_FLAGS | O_CREAT, 0666);
  return file;
}

/* Never standard output, even when the program has closed it: what it prints would land in the file. */
static int move_up(int file) {
  int higher = file < 0 ? -1 : fcntl(file, F_DUPFD_CLOEXEC, LOWEST_DESCRIPTOR);
  if (higher < 0 && file >= 0 && file <= STDERR_FILENO)
    higher = fcntl(file, F_DUPFD_CLOEXEC, STDERR_FILENO + 1);
  if (higher < 0)
    return file;
  close(file);
  return higher;
}

/* All bytes are reserved on the disk, since a store into a hole of a full disk would kill the program with SIGBUS. */
static bool grow(int file, size_t size) {
  if (lseek(file, 0, SEEK_END) >= (off_t)size)
    return true;
  (void)fchmod(file, 0666); /* whatever the umask; only the owner may and need do this */
  int failed, tries = 0;
  do
    failed = fallocate(file, 0, 0, (off_t)size);
  while (failed && errno == EINTR && ++tries < 1000);
  return !failed || (errno == EOPNOTSUPP && ftruncate(file, (off_t)size) == 0);
}

/* Mapped through a file description of its own: a mapping keeps its description, and with it the description's locks,
 * alive; a forked child, which keeps the mapping, would keep its parent's slot. */
static void *map(const char *path, size_t size) {
  int file = open(path, OPEN_FLAGS);
  if (file < 0)
    return MAP_FAILED;
  void *memory = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
  int error = errno;
  close(file);
  errno = error;
  return memory;
}

/* glibc 2.33 has given fstat a new symbol, which older ones lack. */
static bool status_of(int file, struct stat *status) {
  return syscall(SYS_fstat, file, status) == 0;
}

/* The program may have closed our descriptor, with all that it found open, and its number may be another file's now. */
static bool is_ours(const struct shared_file *file) {
  struct stat status;
  return file->locks >= 0 && status_of(file->locks, &status) && status.st_dev == file->device &&
         status.st_ino == file->inode;
}

bool shared_file_open(struct shared_file *file, const char *path, size_t size) {
  struct stat status;
  *file = (struct shared_file){.locks = move_up(open_or_make(path))};
  if (file->locks < 0 || !status_of(file->locks, &status))
    return false;
  file->device = status.st_dev;
  file->inode = status.st_ino;
  void *memory = grow(file->locks, size) ? map(path, size) : MAP_FAILED;
  if (memory != MAP_FAILED) {
    file->memory = memory;
    return true;
  }
  int error = errno;
  shared_file_forget(file);
  errno = error;
  return false;
}

static struct flock lock_of(int slot) {
  return (struct flock){
      .l_type = F_WRLCK, .l_whence = SEEK_SET, .l_start = (off_t)(VGPU_SLOT_LOCK_OFFSET + (unsigned)slot), .l_len = 1};
}

int shared_file_claim_slot(const struct shared_file *file, int count) {
  for (int slot = 0; slot < count; slot++) {
    struct flock lock = lock_of(slot);
    if (fcntl(file->locks, F_OFD_SETLK, &lock) == 0)
      return slot;
  }
  return -1;
}

bool shared_file_slot_is_held(const struct shared_file *file, int slot) {
  struct flock lock = lock_of(slot);
  return !is_ours(file) || fcntl(file->locks, F_OFD_GETLK, &lock) != 0 || lock.l_type != F_UNLCK;
}

void shared_file_forget(struct shared_file *file) {
  if (is_ours(file))
    close(file->locks);
  *file = (struct shared_file){.locks = -1};
}

void shared_file_close(struct shared_file *file, size_t size) {
  if (file->memory != NULL)
    munmap(file->memory, size);
  shared_file_forget(file);
}
