#include "turns/turns.h"

#include "abi.h"
#include "base/claim.h"
#include "base/clock.h"
#include "base/log.h"

#include <errno.h>
#include <linux/futex.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

static bool read_file(void *file, void *to, size_t size, size_t at) {
  return shared_file_read(file, to, size, (off_t)at);
}

static void write_file(void *file, const void *from, size_t size, size_t at) {
  shared_file_write(file, from, size, (off_t)at);
  __sync_synchronize(); /* what is read next is not older */
}

static bool is_held(void *file, int slot) {
  return shared_file_is_held(file, slot, 1);
}

/* The mapping serves only to name the word to the kernel, which answers with an error where it has been cut off. */
static uint32_t *wake_word(void *file) {
  return &((struct turns_file *)((struct shared_file *)file)->memory)->wake;
}

static void wait(void *file, uint32_t expected, int64_t duration_ns, bool awake) {
  struct timespec duration = {.tv_sec = duration_ns / 1000000000, .tv_nsec = duration_ns % 1000000000};
  int64_t until_ns = clock_now_ns() + duration_ns;
  uint32_t found = expected;
  signals_release();
  if (!awake)
    syscall(SYS_futex, wake_word(file), FUTEX_WAIT, expected, &duration, NULL, 0);
  while (awake && found == expected && clock_now_ns() < until_ns)
    read_file(file, &found, sizeof found, offsetof(struct turns_file, wake));
  signals_hold();
}

static void wake_all(void *file) {
  syscall(SYS_futex, wake_word(file), FUTEX_WAKE, __INT_MAX__, NULL, NULL, 0);
}

const struct turns_system turns_file_system = {clock_now_ns, read_file, write_file, is_held, wait, wake_all};

/* `vgpurun` makes the folder; for a program that is limited without it, the first one does. */
static void make_folder(void) {
  if (mkdir(VGPU_LOCK_DIR, 01777) == 0)
    (void)chmod(VGPU_LOCK_DIR, 01777); /* whatever the umask */
}

int turns_file_join(struct shared_file *file, const char *uuid) {
  char path[128];
  make_folder();
  snprintf(path, sizeof path, "%s/%.*s.turns%d", VGPU_LOCK_DIR, VGPU_UUID_SIZE, uuid, TURNS_FILE_VERSION);
  bool opened = shared_file_open(file, path, sizeof(struct turns_file), 0, SHARED_FILE_ANY_OWNER) &&
                shared_file_map(file, sizeof(struct turns_file));
  int slot = opened ? shared_file_claim_slot(file, TURNS_SLOTS) : -1;
  if (slot >= 0)
    return slot;
  const char *reason = errno == EAGAIN ? "more processes than it has room for" : strerror(errno);
  log_line(LOG_WARNING, "%s: %s; this process and others on the GPU do not take turns", path, reason);
  shared_file_close(file, sizeof(struct turns_file));
  return -1;
}
