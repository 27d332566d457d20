#include "shared/shared_file.h"

#include "abi.h"
#include "base/clock.h"
#include "base/compiler.h"
#include "base/libc_symbols.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

/* Since Linux 3.15, later than the oldest C library's headers. */
#ifndef F_OFD_GETLK
#define F_OFD_GETLK 36
#define F_OFD_SETLK 37
#endif

#define OPEN_TO_READ (O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK)
#define OPEN_FLAGS (O_RDWR | OPEN_TO_READ)
#define LOWEST_DESCRIPTOR 100 /* out of the way of programs that use low numbers of their choice */
#define LOCK_TRIES 1000       /* a millisecond apart */
#define PAGE_BYTES 4096

/* ---- opening --------------------------------------------------------------------------------------------------- */

/* First without O_CREAT: in a sticky folder such as /tmp the kernel refuses that for another user's file
 * (fs.protected_regular). */
static int open_or_make(const char *path, mode_t mode) {
  int file = open(path, OPEN_FLAGS);
  if (file < 0 && errno == ENOENT)
    file = open(path, OPEN_FLAGS | O_CREAT, mode);
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

/* We read and write without the description's position, so that it can tell our descriptor from others. To ask for the
 * inode takes longer, and the next write as well: since Linux 6.13 it is noted by the nanosecond once somebody has
 * asked for a file's times. */
#define FIRST_POSITION 0x3c5fd1e7 /* past the data */

static bool is_ours(const struct shared_file *file, int descriptor) {
  return descriptor >= 0 && lseek(descriptor, 0, SEEK_CUR) == file->position;
}

static int mark_as_ours(const struct shared_file *file, int descriptor) {
  if (descriptor >= 0)
    (void)lseek(descriptor, file->position, SEEK_SET);
  return descriptor;
}

/* A position that no other file of this process has. */
static struct shared_file new_file(void) {
  static int count;
  return (struct shared_file){.descriptor = -1,
                              .position = FIRST_POSITION + __atomic_fetch_add(&count, 1, __ATOMIC_RELAXED)};
}

static bool is_same(const struct shared_file *file, int descriptor) {
  struct stat status;
  return libc_file_status(descriptor, &status) && status.st_dev == file->device && status.st_ino == file->inode;
}

static int open_same(const struct shared_file *file) {
  int descriptor =
      file->path == NULL ? -1 : move_up(open(file->path, file->is_read_only ? O_RDONLY | OPEN_TO_READ : OPEN_FLAGS));
  if (descriptor < 0 || is_same(file, descriptor))
    return mark_as_ours(file, descriptor);
  close(descriptor);
  errno = ESTALE;
  return -1;
}

/* Another description of the same file, or -1. Callers hold locks, which a thread that is cancelled would keep. */
static int open_again(const struct shared_file *file) {
  int cancel_state;
  pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &cancel_state);
  int descriptor = open_same(file);
  pthread_setcancelstate(cancel_state, NULL);
  return descriptor;
}

/* The program may have closed our descriptor, with all that it found open, and its number may be another file's now. */
int shared_file_descriptor(struct shared_file *file) {
  int known = __atomic_load_n(&file->descriptor, __ATOMIC_ACQUIRE);
  if (is_ours(file, known))
    return known;
  int opened = open_again(file);
  if (opened < 0 ||
      __atomic_compare_exchange_n(&file->descriptor, &known, opened, false, __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE))
    return opened;
  close(opened); /* another thread was faster */
  return known;
}

/* ---- size and content ------------------------------------------------------------------------------------------ */

static off_t size_of(int file) {
  struct stat status;
  return libc_file_status(file, &status) ? status.st_size : 0;
}

static bool begins_with(int file, unsigned long long magic) {
  unsigned long long first = 0;
  if (pread(file, &first, sizeof first, 0) < 0)
    return false;
  errno = EILSEQ;
  return magic == 0 || first == 0 || first == magic;
}

/* For file systems that cannot reserve. Under the lock, so that nobody uses the file before it has its size. */
static bool write_zeros(struct shared_file *file) {
  static const char zeros[PAGE_BYTES];
  if (!shared_file_lock(file))
    return false;
  ssize_t written = 0;
  off_t end;
  while (written >= 0 && (end = size_of(file->descriptor)) < (off_t)file->size) {
    size_t missing = file->size - (size_t)end;
    written = pwrite(file->descriptor, zeros, missing < sizeof zeros ? missing : sizeof zeros, end);
  }
  int error = errno;
  shared_file_unlock(file);
  errno = error;
  return written >= 0;
}

static bool may_have(size_t size) {
  struct rlimit largest;
  errno = EFBIG;
  return getrlimit(RLIMIT_FSIZE, &largest) != 0 || largest.rlim_cur >= size;
}

/* All bytes are reserved on the disk, so that a full one shows now. */
static bool grow(struct shared_file *file) {
  if (size_of(file->descriptor) >= (off_t)file->size)
    return true;
  if (!may_have(file->size))
    return false;
  if (!file->is_of_one_user)
    (void)fchmod(file->descriptor, 0666); /* whatever the umask; only the owner may and need do this */
  int failed, tries = 0;
  do
    failed = fallocate(file->descriptor, 0, 0, (off_t)file->size);
  while (failed && errno == EINTR && ++tries < 1000);
  return !failed || ((errno == EOPNOTSUPP || errno == ENOSYS) && write_zeros(file));
}

static bool may_be_used(const struct shared_file *file, const struct stat *status, unsigned long long magic,
                        uid_t owner) {
  errno = S_ISREG(status->st_mode) ? EPERM : EINVAL;
  return S_ISREG(status->st_mode) && (owner == SHARED_FILE_ANY_OWNER || owner == status->st_uid) &&
         begins_with(file->descriptor, magic);
}

static bool open_and_grow(struct shared_file *file, const char *path, size_t size, unsigned long long magic,
                          uid_t owner) {
  struct stat status;
  file->descriptor = mark_as_ours(file, move_up(open_or_make(path, file->is_of_one_user ? 0600 : 0666)));
  if (file->descriptor < 0 || !libc_file_status(file->descriptor, &status))
    return false;
  file->path = strdup(path);
  file->size = size;
  file->device = status.st_dev;
  file->inode = status.st_ino;
  return file->path != NULL && may_be_used(file, &status, magic, owner) && grow(file);
}

bool shared_file_open(struct shared_file *file, const char *path, size_t size, unsigned long long magic, uid_t owner) {
  *file = new_file();
  file->is_of_one_user = owner != SHARED_FILE_ANY_OWNER;
  bool opened = open_and_grow(file, path, size, magic, owner);
  int error = errno;
  if (!opened)
    shared_file_close(file);
  errno = error;
  return opened;
}

bool shared_file_adopt(struct shared_file *file, int descriptor, const char *path) {
  struct stat status = {0};
  *file = new_file();
  file->descriptor = mark_as_ours(file, move_up(descriptor));
  file->path = strdup(path);
  file->is_read_only = true;
  if (libc_file_status(file->descriptor, &status)) {
    file->device = status.st_dev;
    file->inode = status.st_ino;
  }
  if (file->path == NULL)
    shared_file_close(file);
  return file->path != NULL;
}

/* ---- locks ----------------------------------------------------------------------------------------------------- */

#define LOCK_BYTE (VGPU_SLOT_LOCK_OFFSET - 1)

static struct flock range(short type, unsigned long long start, size_t length) {
  return (struct flock){.l_type = type, .l_whence = SEEK_SET, .l_start = (off_t)start, .l_len = (off_t)length};
}

static struct flock slots(short type, int first, int count) {
  return range(type, VGPU_SLOT_LOCK_OFFSET + (unsigned)first, (size_t)count);
}

static bool set(struct shared_file *file, struct flock lock) {
  return fcntl(shared_file_descriptor(file), F_OFD_SETLK, &lock) == 0;
}

bool shared_file_try_lock_bytes(int descriptor, off_t at, size_t size) {
  struct flock lock = range(F_WRLCK, (unsigned long long)at, size);
  return fcntl(descriptor, F_OFD_SETLK, &lock) == 0;
}

void shared_file_unlock_bytes(int descriptor, off_t at, size_t size) {
  struct flock lock = range(F_UNLCK, (unsigned long long)at, size);
  fcntl(descriptor, F_OFD_SETLK, &lock);
}

void shared_file_share_byte(struct shared_file *file, off_t at) {
  set(file, range(F_RDLCK, (unsigned long long)at, 1));
}

void shared_file_leave_byte(struct shared_file *file, off_t at) {
  set(file, range(F_UNLCK, (unsigned long long)at, 1));
}

static bool is_taken(int error) {
  return error == EAGAIN || error == EACCES;
}

bool shared_file_try_lock(struct shared_file *file) {
  return set(file, range(F_WRLCK, LOCK_BYTE, 1));
}

bool shared_file_lock(struct shared_file *file) {
  for (int tries = 0; tries < LOCK_TRIES; tries++) {
    if (shared_file_try_lock(file))
      return true;
    if (!is_taken(errno))
      return false;
    clock_sleep_ns(1000000);
  }
  errno = EBUSY;
  return false;
}

void shared_file_unlock(struct shared_file *file) {
  set(file, range(F_UNLCK, LOCK_BYTE, 1));
}

static bool is_held(int descriptor, int first, int count) {
  struct flock lock = slots(F_WRLCK, first, count);
  return fcntl(descriptor, F_OFD_GETLK, &lock) != 0 || lock.l_type != F_UNLCK;
}

/* Returns a slot that seems free, behind one that is held or before all: by halves, since a question takes the kernel
 * longer the more slots are held. */
static int find_free(int descriptor, int count) {
  int first = 0, end = count - 1;
  while (first < end) {
    int middle = first + (end - first) / 2;
    if (is_held(descriptor, middle, 1))
      first = middle + 1;
    else
      end = middle;
  }
  return first;
}

/* Others may be faster: then the next one. */
static int take_free(int descriptor, int count) {
  int found = find_free(descriptor, count);
  for (int tries = 0; tries < count; tries++) {
    int slot = (found + tries) % count;
    struct flock lock = slots(F_WRLCK, slot, 1);
    if (fcntl(descriptor, F_OFD_SETLK, &lock) == 0)
      return slot;
    if (!is_taken(errno))
      return -1;
  }
  errno = EAGAIN;
  return -1;
}

/* The mapping comes before the lock, and is told to stay out of children before there is anything to inherit. */
int shared_file_claim_slot(struct shared_file *file, int count) {
  int descriptor = open_again(file);
  if (descriptor < 0)
    return -1;
  int slot = -1;
  void *mapping = mmap(NULL, PAGE_BYTES, PROT_NONE, MAP_SHARED, descriptor, 0);
  if (mapping != MAP_FAILED && madvise(mapping, PAGE_BYTES, MADV_DONTFORK) == 0)
    slot = take_free(descriptor, count);
  int error = errno;
  if (slot >= 0)
    file->slot = mapping;
  else if (mapping != MAP_FAILED)
    munmap(mapping, PAGE_BYTES);
  close(descriptor);
  errno = error;
  return slot;
}

bool shared_file_borrow_slot(struct shared_file *file, int slot) {
  return set(file, slots(F_WRLCK, slot, 1));
}

void shared_file_return_slot(struct shared_file *file, int slot) {
  set(file, slots(F_UNLCK, slot, 1));
}

bool shared_file_is_held(struct shared_file *file, int first, int count) {
  return is_held(shared_file_descriptor(file), first, count);
}

/* ---- content --------------------------------------------------------------------------------------------------- */

/* Callers hold locks. In pread() and pwrite() a thread that is cancelled would end, and keep them. */

bool shared_file_read_at(int descriptor, void *to, size_t size, off_t at) {
  ssize_t length = syscall(SYS_pread64, descriptor, to, size, at);
  if (length < 0)
    return false;
  memset((char *)to + length, 0, size - (size_t)length);
  if (length < (ssize_t)size)
    errno = ENODATA;
  return length == (ssize_t)size;
}

/* Past the program's own limit for files a write is SIGXFSZ, even where the file is as large already. So the kernel
 * writes into a mapping, as into any memory: where the file has been cut off meanwhile, that is an error and no SIGBUS.
 */
static COLD bool write_past_limit(int descriptor, const void *from, size_t size, off_t at) {
  off_t within = at % sysconf(_SC_PAGESIZE);
  char *mapping = mmap(NULL, (size_t)within + size, PROT_READ | PROT_WRITE, MAP_SHARED, descriptor, at - within);
  bool written = false;
  if (mapping != MAP_FAILED) {
    struct iovec ours = {(void *)from, size}, there = {mapping + within, size};
    written = syscall(SYS_process_vm_writev, getpid(), &ours, 1, &there, 1, 0) == (ssize_t)size;
    munmap(mapping, (size_t)within + size);
  }
  errno = EFBIG;
  return written;
}

bool shared_file_write_at(int descriptor, const void *from, size_t size, off_t at) {
  if (!may_have((size_t)at + size))
    return write_past_limit(descriptor, from, size, at);
  errno = ENOSPC; /* a part of it was written */
  return syscall(SYS_pwrite64, descriptor, from, size, at) == (ssize_t)size;
}

bool shared_file_read(struct shared_file *file, void *to, size_t size, off_t at) {
  return shared_file_read_at(shared_file_descriptor(file), to, size, at);
}

bool shared_file_write(struct shared_file *file, const void *from, size_t size, off_t at) {
  return shared_file_write_at(shared_file_descriptor(file), from, size, at);
}

bool shared_file_mend(struct shared_file *file) {
  return errno == ENODATA && grow(file);
}

/* ---- the end --------------------------------------------------------------------------------------------------- */

void shared_file_forget(struct shared_file *file) {
  if (is_ours(file, file->descriptor))
    close(file->descriptor);
  *file = (struct shared_file){.descriptor = -1};
}

void shared_file_close(struct shared_file *file) {
  if (file->slot != NULL)
    munmap(file->slot, PAGE_BYTES);
  free(file->path);
  shared_file_forget(file);
}
