/* The file behind the shared state, and the locks on its bytes. */
#pragma once

#include "common.h"

/* The bytes that are locked lie past the data: a lock needs no byte behind it. */
#define STATE_LOCK_ALL (1LL << 40)
#define STATE_LOCK_SLOTS (1LL << 41)
#define STATE_LOCK_PIDS (1LL << 42)
#define STATE_LOCK_REQUESTS (1LL << 43)

/* Opens the file that VGPUSIM_STATE, the configuration or the default names, creates it safely, and gives it at least
 * this size. A file that begins with anything but zeros or this number is somebody else's and stays as it is. Returns a
 * descriptor, or -1 after one line on stderr; path is set to the file's name. */
int state_file_open(size_t size_bytes, uint64_t magic, const char **path);

/* The name of the file that was opened. */
const char *state_file_path(void);

/* The descriptor, or another one of the same file when the program has closed it; -1 when there is none any more. */
int state_file_check(int fd);

/* Closes the descriptor if it is still ours. */
void state_file_close(int fd);

/* Gives the bytes room on the disk, since a store into a hole of a full disk is SIGBUS. False when there is none. */
bool state_file_reserve(int fd, size_t start, size_t length);

/* Locks of this open file description: the kernel drops them when the last copy of the descriptor is gone. */
void state_file_lock_byte(int fd, long long byte);
bool state_file_try_lock(int fd, long long byte);
void state_file_unlock_byte(int fd, long long byte);

/* Whether another open file description holds this byte. */
bool state_file_is_locked(int fd, long long byte);

/* A classic record lock, of the process. */
void state_file_mark_pid(int fd, long long byte);

/* The holder of a classic record lock: its PID in the caller's PID namespace, 0 when it has none there, -1 when the
 * byte is free or is our own. */
long state_file_marked_pid(int fd, long long byte);
