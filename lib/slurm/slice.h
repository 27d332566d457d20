/* A job's slice, as `vgpurun slurm prolog` has made it, and the way into it: for the SPANK plugin and the PAM module.
 */
#ifndef VGPU_SLURM_SLICE_H
#define VGPU_SLURM_SLICE_H

#include <errno.h>
#include <limits.h>
#include <sched.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>
#include <unistd.h>

#include "abi.h"

#define SLICE_RECORD_SIZE 1024
#define SLICE_REASON_SIZE 512

/* A slice's folder, and what <slice>/slurm/job says of the job. */
struct slice {
  char folder[PATH_MAX - 64];
  char record[SLICE_RECORD_SIZE];
};

/* A file's first bytes as a string; false when it cannot be read. */
static inline bool read_text(const char *path, char *text, size_t size) {
  FILE *file = fopen(path, "re");
  if (!file)
    return false;
  text[fread(text, 1, size - 1, file)] = 0;
  fclose(file);
  return true;
}

/* Whether the prolog has written why a job has no share. */
static inline bool slice_refused(const char *state_folder, uint32_t job, char reason[SLICE_REASON_SIZE]) {
  char path[PATH_MAX];
  snprintf(path, sizeof path, "%s/slurm/%u", state_folder, job);
  if (!read_text(path, reason, SLICE_REASON_SIZE))
    return false;
  reason[strcspn(reason, "\n")] = 0;
  return true;
}

/* False when the job has no slice. */
static inline bool slice_find(const char *state_folder, uint32_t job, struct slice *slice) {
  char path[PATH_MAX];
  snprintf(slice->folder, sizeof slice->folder, "%s/slices/slurm-%u", state_folder, job);
  snprintf(path, sizeof path, "%s/slurm/job", slice->folder);
  return read_text(path, slice->record, sizeof slice->record);
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

/* Gives this process mounts of its own, with the slice's files where a container has them. Mounts that the host makes
 * later still comes, and nothing of these goes back to it. False with errno. */
static inline bool slice_enter(const struct slice *slice) {
  return unshare(CLONE_NEWNS) == 0 && mount(NULL, "/", NULL, MS_SLAVE | MS_REC, NULL) == 0 &&
         slice_put(slice, "slurm/library", VGPU_CONTAINER_LIBRARY, true) &&
         slice_put(slice, "etc", VGPU_CONTAINER_DIR "/etc", true) &&
         slice_put(slice, "run/usage", VGPU_CONTAINER_USAGE, false) &&
         slice_put(slice, "slurm/turns", VGPU_CONTAINER_TURNS, false) &&
         put(VGPU_LOCK_DIR, VGPU_CONTAINER_TENANTS, true) &&
         slice_put(slice, "etc/ld.so.preload", "/etc/ld.so.preload", true);
}

#endif
