/* A job's slice, as `vgpurun slurm prolog` has made it, and the way into it: for the SPANK plugin and the PAM module.
 */
#pragma once

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <sched.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <unistd.h>

#include "abi.h"

#define SLICE_RECORD_SIZE 1024
#define SLICE_REASON_SIZE 512

/* A slice's folder, and what <slice>/slurm/job says of the job. */
struct slice {
  char folder[PATH_MAX - 64];
  char record[SLICE_RECORD_SIZE];
};

/* A job's share here: there is none, there is its slice, or there is a reason why nothing of it may run. */
enum share { SHARE_NONE, SHARE_SLICE, SHARE_REFUSED };

/* A file's first bytes as a string; false with errno when it cannot be read. */
static inline bool read_text(const char *path, char *text, size_t size) {
  int file = open(path, O_RDONLY | O_CLOEXEC);
  ssize_t length = file < 0 ? -1 : read(file, text, size - 1);
  int error = errno;
  if (file >= 0)
    close(file);
  text[length > 0 ? length : 0] = 0;
  errno = error;
  return length >= 0;
}

/* Only a file that is not there says that there is nothing: a user may have taken away what it takes to open one. */
static inline enum share cannot_read(char reason[SLICE_REASON_SIZE]) {
  if (errno == ENOENT)
    return SHARE_NONE;
  snprintf(reason, SLICE_REASON_SIZE, "its files cannot be read: %s", strerror(errno));
  return SHARE_REFUSED;
}

/* Whether the slice is of this user's job. Slurm may have given the id to another job before. */
static inline bool slice_is_of(const struct slice *slice, uid_t user) {
  char line[32];
  snprintf(line, sizeof line, "\nuid=%u\n", (unsigned)user);
  return strstr(slice->record, line) != NULL;
}

/* Looks for what the prolog has made for a user's job: its slice, or why it has none. */
static inline enum share slice_find(const char *state_folder, uint32_t job, uid_t user, struct slice *slice,
                                    char reason[SLICE_REASON_SIZE]) {
  char path[PATH_MAX];
  snprintf(path, sizeof path, "%s/slurm/%u", state_folder, job);
  if (read_text(path, reason, SLICE_REASON_SIZE)) {
    reason[strcspn(reason, "\n")] = 0;
    if (!reason[0])
      snprintf(reason, SLICE_REASON_SIZE, "why could not be written down; is the disk of %s full?", state_folder);
    return SHARE_REFUSED;
  }
  if (errno != ENOENT)
    return cannot_read(reason);
  snprintf(slice->folder, sizeof slice->folder, "%s/slices/slurm-%u", state_folder, job);
  snprintf(path, sizeof path, "%s/slurm/job", slice->folder);
  if (!read_text(path, slice->record, sizeof slice->record))
    return cannot_read(reason);
  if (slice_is_of(slice, user))
    return SHARE_SLICE;
  snprintf(reason, SLICE_REASON_SIZE, "the one that is there is another user's");
  return SHARE_REFUSED;
}

static inline bool put(const char *source, const char *target, bool read_only) {
  return mount(source, target, NULL, MS_BIND, NULL) == 0 &&
         (!read_only || mount(NULL, target, NULL, MS_REMOUNT | MS_BIND | MS_RDONLY | MS_NOSUID, NULL) == 0);
}

static inline bool slice_put(const struct slice *slice, const char *name, const char *target, bool read_only) {
  char source[PATH_MAX];
  snprintf(source, sizeof source, "%s/%s", slice->folder, name);
  return put(source, target, read_only);
}

static inline bool is_same_file(const struct stat *one, const struct stat *other) {
  return one->st_dev == other->st_dev && one->st_ino == other->st_ino;
}

/* Whether this process has a slice's files in their places already. */
static inline bool slice_is_entered(const struct slice *slice) {
  char path[PATH_MAX];
  struct stat own, there;
  snprintf(path, sizeof path, "%s/run/usage", slice->folder);
  return stat(path, &own) == 0 && stat(VGPU_CONTAINER_USAGE, &there) == 0 && is_same_file(&own, &there);
}

/* Gives this process mounts of its own, with the slice's files where a container has them. Mounts that the host makes
 * later still comes, and nothing of these goes back to it. False with errno. The file of Nix's loader has no place yet
 * where an older vgpurun has prepared the job. */
static inline bool slice_enter(const struct slice *slice) {
  if (slice_is_entered(slice))
    return true;
  return unshare(CLONE_NEWNS) == 0 && mount(NULL, "/", NULL, MS_SLAVE | MS_REC, NULL) == 0 &&
         slice_put(slice, "slurm/library", VGPU_CONTAINER_LIBRARY, true) &&
         slice_put(slice, "etc", VGPU_CONTAINER_DIR "/etc", true) &&
         slice_put(slice, "run/usage", VGPU_CONTAINER_USAGE, false) &&
         slice_put(slice, "slurm/presence", VGPU_CONTAINER_PRESENCE, false) &&
         put(VGPU_LOCK_DIR, VGPU_CONTAINER_TENANTS, true) &&
         slice_put(slice, "etc/ld.so.preload", "/etc/ld.so.preload", true) &&
         (slice_put(slice, "etc/ld.so.preload", "/etc/ld-nix.so.preload", true) || errno == ENOENT);
}
