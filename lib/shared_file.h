/*
 * A file that several processes map, made by whoever comes first, and slots in it that the kernel gives back when their
 * owner ends. All zero is its first content.
 */
#ifndef VGPU_SHARED_FILE_H
#define VGPU_SHARED_FILE_H

#include <stdbool.h>
#include <stddef.h>
#include <sys/types.h>

struct shared_file {
  void *memory;
  int locks; /* the descriptor whose open file description holds the slots */
  dev_t device;
  ino_t inode;
};

/* Opens the file, or makes it for all users, and maps it. Links are not followed. False with errno set. */
bool shared_file_open(struct shared_file *file, const char *path, size_t size);

/* Takes the first slot below `count` that no living process holds, or -1. A slot is the lock of one byte past the data,
 * held until the last descriptor of it is closed: by the process's end, however it comes. */
int shared_file_claim_slot(const struct shared_file *file, int count);

/* When in doubt it is held. */
bool shared_file_slot_is_held(const struct shared_file *file, int slot);

/* In a forked child, so that it does not keep its parent's slots. The mapping stays, since another thread of the parent
 * may have been using it when it forked. */
void shared_file_forget(struct shared_file *file);

/* Gives up a file that turned out to be no good. */
void shared_file_close(struct shared_file *file, size_t size);

#endif
