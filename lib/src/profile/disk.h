/* The profile's file on the disk: made, mapped, and given its room step by step. */
#pragma once

#include "abi.h"
#include "profile/file.h"
#include <stdlib.h>

#include <pthread.h>
#include <stdbool.h>
#include <sys/types.h>

#define PROFILE_DISK_LEAST_BYTES (PROFILE_CHUNKS_OFFSET + 32 * PROFILE_CHUNK_SIZE)

struct profile_disk {
  struct profile_file *file; /* NULL: not open */
  char *path;
  size_t mapped_bytes;
  pthread_mutex_t lock; /* guards the growth; never held across a driver call */
  size_t room_bytes;    /* bytes that are allocated on the disk */
  uint32_t chunk_count; /* the bound, or the disk, has room for so many */
  dev_t device;
  ino_t inode;
};

/* Makes a new file in the folder; it may grow to most_bytes. False with errno set, and nothing left behind. */
bool profile_disk_open(struct profile_disk *disk, const char *folder, size_t most_bytes);

/* The chunk at a place of the ring, any number; NULL where not even one finds room. When the disk is full, the ring is
 * as large as it has become, and a line on stderr says so. */
struct profile_chunk *profile_disk_chunk(struct profile_disk *disk, uint64_t place);

/* Closes the file, which stays on the disk: in a forked child, or when it turned out to be unusable. */
void profile_disk_close(struct profile_disk *disk);

/* Does the environment ask for a profile? */

static inline bool profile_is_wanted(void) {
  const char *folder = getenv(VGPU_ENV_PROFILE);
  return folder != NULL && folder[0] != '\0';
}
