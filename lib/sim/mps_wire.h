/*
 * How the simulated MPS talks, in the folder of pipes: by sockets `control` and `server`, with lines of text. A client
 * asks the control daemon for its server by CLIENT, and stays connected with that as long as it lives.
 */
#pragma once

#include <poll.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#define MPS_PIPES "CUDA_MPS_PIPE_DIRECTORY"
#define MPS_DEFAULT_PIPES "/tmp/nvidia-mps"
#define MPS_IS_SERVER "VGPUSIM_MPS_SERVER" /* in the server's environment: it is no client of itself */
#define MPS_CLIENT "client"                /* answered with the server's PID */
#define MPS_LIST "list"                    /* asks the server for the PIDs of its clients */
#define MPS_STATUS "status"                /* ACTIVE, or FAULT after the signal that stands for one of a client */
#define MPS_LINE 4096
#define MPS_WAIT_MS 10000

static inline bool mps_address(const char *name, struct sockaddr_un *address) {
  const char *folder = getenv(MPS_PIPES);
  *address = (struct sockaddr_un){.sun_family = AF_UNIX};
  return (size_t)snprintf(address->sun_path, sizeof address->sun_path, "%s/%s", folder ? folder : MPS_DEFAULT_PIPES,
                          name) < sizeof address->sun_path;
}

/* A connection, or -1. */
static inline int mps_open(const char *name) {
  struct sockaddr_un address;
  int fd = mps_address(name, &address) ? socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0) : -1;
  if (fd >= 0 && connect(fd, (struct sockaddr *)&address, sizeof address) == 0)
    return fd;
  if (fd >= 0)
    close(fd);
  return -1;
}

/* A socket that takes connections, or -1. */
static inline int mps_listen(const char *name) {
  struct sockaddr_un address;
  int fd = mps_address(name, &address) ? socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0) : -1;
  if (fd >= 0 && unlink(address.sun_path) <= 0 && bind(fd, (struct sockaddr *)&address, sizeof address) == 0 &&
      listen(fd, 64) == 0)
    return fd;
  if (fd >= 0)
    close(fd);
  return -1;
}

/* Says a line, and reads the answer; false without one. */
static inline bool mps_ask(int fd, const char *line, char answer[MPS_LINE]) {
  struct pollfd waits = {.fd = fd, .events = POLLIN};
  if (send(fd, line, strlen(line) + 1, MSG_NOSIGNAL) < 0 || poll(&waits, 1, MPS_WAIT_MS) != 1)
    return false;
  ssize_t length = recv(fd, answer, MPS_LINE - 1, 0);
  answer[length > 0 ? length : 0] = '\0';
  return length > 0;
}
