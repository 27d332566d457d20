#include "cgroups.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/vfs.h>
#include <unistd.h>

#define CGROUP2_MAGIC 0x63677270
#define KERNFS_HANDLE 0xfe /* the type of a file handle that is a cgroup's id */

#ifndef SYS_pidfd_open
#define SYS_pidfd_open 434
#endif

/* <linux/pidfd.h> of Linux 6.13, in its first version. */
struct pidfd_answer {
  uint64_t mask, cgroup;
  uint32_t numbers[12];
};
#define ASK_PIDFD _IOWR(0xFF, 11, struct pidfd_answer)
#define ASK_CGROUP (1ULL << 2)

static uint64_t folder_id(const char *path, bool is_root_counted) {
  struct statfs filesystem;
  struct stat status;
  int folder = open(path, O_PATH | O_DIRECTORY | O_CLOEXEC);
  if (folder < 0)
    return 0;
  /* glibc 2.33 has given stat and fstat new symbols, which older ones lack. */
  bool is_cgroup = fstatfs(folder, &filesystem) == 0 && filesystem.f_type == CGROUP2_MAGIC &&
                   syscall(SYS_fstat, folder, &status) == 0;
  close(folder);
  return is_cgroup && (is_root_counted || status.st_ino != 1) ? status.st_ino : 0;
}

uint64_t cgroup_at(const char *path) {
  return folder_id(path, true);
}

uint64_t cgroup_now(void) {
  struct pidfd_answer answer = {.mask = ASK_CGROUP};
  int error = errno, pidfd = (int)syscall(SYS_pidfd_open, getpid(), 0);
  bool is_known = pidfd >= 0 && ioctl(pidfd, ASK_PIDFD, &answer) == 0 && answer.mask & ASK_CGROUP;
  if (pidfd >= 0)
    close(pidfd);
  errno = error;
  return is_known ? answer.cgroup : 0;
}

/* The folder of the caller's cgroup, as the caller sees it. */
static bool find_folder(char *path, size_t size) {
  char line[4096];
  bool is_found = false;
  FILE *file = fopen("/proc/self/cgroup", "re");
  while (file && !is_found && fgets(line, sizeof line, file))
    if (strncmp(line, "0::/", 4) == 0) {
      line[strcspn(line, "\n")] = '\0';
      is_found = snprintf(path, size, SIM_CGROUP_FOLDER "%s", line + 3) < (int)size;
    }
  if (file)
    fclose(file);
  return is_found;
}

void cgroups_of_caller(uint64_t ids[SIM_CGROUP_DEPTH]) {
  char path[4096 + sizeof SIM_CGROUP_FOLDER];
  unsigned count = 0;
  memset(ids, 0, SIM_CGROUP_DEPTH * sizeof *ids);
  if ((ids[0] = cgroup_now()))
    count = 1;
  if (!find_folder(path, sizeof path))
    return;
  while (count < SIM_CGROUP_DEPTH && strlen(path) >= strlen(SIM_CGROUP_FOLDER)) {
    uint64_t id = folder_id(path, false);
    if (id && (count == 0 || ids[count - 1] != id))
      ids[count++] = id;
    *strrchr(path, '/') = '\0';
  }
}

bool cgroup_exists(uint64_t id) {
  struct {
    struct file_handle head;
    uint64_t id;
  } handle = {.head = {.handle_bytes = sizeof id, .handle_type = KERNFS_HANDLE}, .id = id};
  int error = errno, folder = open(SIM_CGROUP_FOLDER, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  int found = folder < 0 ? -1 : open_by_handle_at(folder, &handle.head, O_PATH | O_CLOEXEC);
  bool is_gone = folder >= 0 && found < 0 && errno == ESTALE;
  if (found >= 0)
    close(found);
  if (folder >= 0)
    close(folder);
  errno = error;
  return !is_gone;
}
