/* The processes of the program: each ends with the one that began it, so that none works on by itself. */
#pragma once

#include <signal.h>
#include <sys/prctl.h>
#include <unistd.h>

static inline pid_t fork_child(void) {
  pid_t parent = getpid(), child = fork();
  if (child == 0) {
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != parent)
      _exit(4);
  }
  return child;
}
