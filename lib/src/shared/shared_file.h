/*
 * A file that several processes share, made by the first of them, and slots in it that the kernel gives back when
 * their owner ends. All zero is its first content. A process that may write it may truncate it, and a load from
 * a mapping of it would be SIGBUS then: so it is read and written by system calls alone, which answer instead.
 *
 * A slot is a lock on one byte past the data. Its open file description is kept by nothing but a mapping which forked
 * children do not inherit: so a program that closes every descriptor keeps its slot, and a child never keeps its
 * parent's. The descriptor that stays open is for questions only, and is opened again when the program has closed it.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <sys/types.h>

struct shared_file {
  void *slot;     /* keeps the claimed slot; NULL: none */
  int descriptor; /* for questions, and for locks that are held for a moment */
  off_t position; /* the descriptor's position, by which it is known */
  char *path;     /* NULL: not open */
  size_t size;
  dev_t device;
  ino_t inode;
  bool is_read_only;
  bool is_of_one_user; /* others could lock its slots */
};

/* Opens the file, or makes it, for all users where any may own it. Links are not followed. False with errno set. A file
 * that does not begin with `magic` or with zeros is somebody else's: it stays as it is, and errno is EILSEQ. With a
 * magic of 0, any content will do. One of another owner than the one asked for (EPERM) is not trusted either. */
#define SHARED_FILE_ANY_OWNER ((uid_t) - 1)
bool shared_file_open(struct shared_file *file, const char *path, size_t size, unsigned long long magic, uid_t owner);

/* Takes over a descriptor of the file, which may be read but not written. False, and it is closed, without memory. */
bool shared_file_adopt(struct shared_file *file, int descriptor, const char *path);

static inline bool shared_file_is_open(const struct shared_file *file) {
  return file->path != NULL;
}

/* Takes a slot below `count` that no living process holds. Else -1, with errno: EAGAIN when all are taken. */
int shared_file_claim_slot(struct shared_file *file, int count);

/* Takes a slot that no living process holds, for a moment: nobody else claims it meanwhile. False when it is held, or
 * when that cannot be told. */
bool shared_file_borrow_slot(struct shared_file *file, int slot);
void shared_file_return_slot(struct shared_file *file, int slot);

/* Is any of `count` slots held, by this process or another? Also where that cannot be told. */
bool shared_file_is_held(struct shared_file *file, int first, int count);

/* Excludes other processes, but for a moment only. False, and errno, when that cannot be had within a second. */
bool shared_file_lock(struct shared_file *file);

/* Takes that lock without waiting. False, and errno, when it cannot be had at once. */
bool shared_file_try_lock(struct shared_file *file);
void shared_file_unlock(struct shared_file *file);

/* The descriptor, for a few calls in a row: opened again where the program has closed it. Else -1 with errno. */
int shared_file_descriptor(struct shared_file *file);

/* Locks these bytes against other processes, for a moment. False, and errno, when it cannot be had at once. */
bool shared_file_try_lock_bytes(int descriptor, off_t at, size_t size);
void shared_file_unlock_bytes(int descriptor, off_t at, size_t size);

/* Holds a read lock on one byte, together with others. Does nothing where the file cannot be locked. */
void shared_file_share_byte(struct shared_file *file, off_t at);

/* Gives that lock up. */
void shared_file_leave_byte(struct shared_file *file, off_t at);

/* False, and errno, when not all could be read or written. A part that was cut off the file reads as zeros, and errno
 * is ENODATA. */
bool shared_file_read_at(int descriptor, void *to, size_t size, off_t at);
bool shared_file_write_at(int descriptor, const void *from, size_t size, off_t at);
bool shared_file_read(struct shared_file *file, void *to, size_t size, off_t at);
bool shared_file_write(struct shared_file *file, const void *from, size_t size, off_t at);

/* After a read that failed: was the file cut off, and has it its size again? */
bool shared_file_mend(struct shared_file *file);

/* Call in a forked child. The mapping stays, since a program that forks without the C library's knowledge may go on to
 * use it. */
void shared_file_forget(struct shared_file *file);

/* Gives up a file that turned out to be unusable. */
void shared_file_close(struct shared_file *file);
