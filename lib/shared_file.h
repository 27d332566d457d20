/*
 * A file that several processes map, made by whoever comes first, and slots in it that the kernel gives back when their
 * owner ends. All zero is its first content.
 *
 * A slot is a lock on one byte past the data. Its open file description is kept by nothing but a mapping which forked
 * children do not inherit: so a program that closes every descriptor keeps its slot, and a child never keeps its
 * parent's. The descriptor that stays open is for questions only, and is opened again when the program has closed it.
 */
#ifndef VGPU_SHARED_FILE_H
#define VGPU_SHARED_FILE_H

#include <stdbool.h>
#include <stddef.h>
#include <sys/types.h>

struct shared_file {
  void *memory;   /* the data; NULL: not open */
  void *slot;     /* keeps the claimed slot; NULL: none */
  int descriptor; /* for questions, and for locks that are held for a moment */
  char *path;
  dev_t device;
  ino_t inode;
};

/* Opens the file, or makes it for all users, and maps it. Links are not followed. False with errno set. A file that
 * does not begin with `magic` or with zeros is somebody else's: it stays as it is, and errno is EILSEQ. With a magic of
 * 0, any content will do. So does any owner but the one asked for (EPERM): who owns a file can truncate it under us,
 * which ends the program. */
#define SHARED_FILE_ANY_OWNER ((uid_t) - 1)
bool shared_file_open(struct shared_file *file, const char *path, size_t size, unsigned long long magic, uid_t owner);

/* Takes the first slot below `count` that no living process holds. Else -1, with errno: EAGAIN when all are taken. */
int shared_file_claim_slot(struct shared_file *file, int count);

/* Takes a slot that no living process holds, for a moment: nobody else claims it meanwhile. False when it is held, or
 * when that cannot be told. */
bool shared_file_borrow_slot(struct shared_file *file, int slot);
void shared_file_return_slot(struct shared_file *file, int slot);

/* Is any of `count` slots held, by this process or another? Also where that cannot be told. */
bool shared_file_is_held(struct shared_file *file, int first, int count);

/* Excludes other processes, but for a moment only. False, and errno, when that cannot be had within a second, or at
 * once.
 */
bool shared_file_lock(struct shared_file *file);
bool shared_file_try_lock(struct shared_file *file);
void shared_file_unlock(struct shared_file *file);

/* For files that strangers may truncate, where a load or a store would be SIGBUS. False when not all could be read or
 * written. */
bool shared_file_read(struct shared_file *file, void *to, size_t size, off_t at);
bool shared_file_write(struct shared_file *file, const void *from, size_t size, off_t at);

/* In a forked child. The data stays mapped, since whoever forks without the C library's knowledge may go on to use it.
 */
void shared_file_forget(struct shared_file *file);

/* Gives up a file that turned out to be no good. */
void shared_file_close(struct shared_file *file, size_t size);

#endif
