/*
 * nvidia-cuda-mps-server of the simulated world: a process with contexts on all GPUs, whose channels its clients have
 * theirs beside, and which each client is connected with. What has happened to it happens to them. SIGUSR1 stands for a
 * fault of a client.
 */
#include <dlfcn.h>
#include <signal.h>

#include "cuda_api.h"
#include "mps_wire.h"

#define MOST_CLIENTS 256

static struct pollfd sockets[1 + MOST_CLIENTS]; /* the first one takes connections */
static pid_t pids[1 + MOST_CLIENTS];
static nfds_t socket_count = 1;
static volatile sig_atomic_t has_failed;
static bool is_told;

static bool make_contexts(void *cuda) {
  CUresult (*init)(unsigned) = (CUresult (*)(unsigned))dlsym(cuda, "cuInit");
  CUresult (*count)(int *) = (CUresult (*)(int *))dlsym(cuda, "cuDeviceGetCount");
  CUresult (*retain)(CUcontext *, CUdevice) =
      (CUresult (*)(CUcontext *, CUdevice))dlsym(cuda, "cuDevicePrimaryCtxRetain");
  CUcontext context;
  int devices = 0;
  bool good = init && count && retain && init(0) == CUDA_SUCCESS && count(&devices) == CUDA_SUCCESS;
  for (int i = 0; good && i < devices; i++)
    good = retain(&context, i) == CUDA_SUCCESS;
  return good && devices > 0;
}

static void take_client(void) {
  struct ucred who;
  socklen_t size = sizeof who;
  int fd = accept(sockets[0].fd, NULL, NULL);
  if (fd < 0)
    return;
  if (socket_count > MOST_CLIENTS || getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &who, &size) != 0) {
    close(fd);
    return;
  }
  sockets[socket_count] = (struct pollfd){.fd = fd, .events = POLLIN};
  pids[socket_count++] = who.pid;
}

static void drop(nfds_t place) {
  close(sockets[place].fd);
  socket_count--;
  sockets[place] = sockets[socket_count];
  pids[place] = pids[socket_count];
}

/* All but the one that asks. */
static void list_clients(nfds_t asking) {
  char text[MPS_LINE] = "";
  for (nfds_t i = 1; i < socket_count; i++)
    if (i != asking && strlen(text) < MPS_LINE - 16)
      sprintf(text + strlen(text), "%d\n", (int)pids[i]);
  send(sockets[asking].fd, text, strlen(text) + 1, MSG_NOSIGNAL);
}

static void note_fault(int number) {
  (void)number;
  has_failed = 1;
}

static void tell_of_fault(void) {
  for (nfds_t i = 1; i < socket_count; i++)
    send(sockets[i].fd, "fault", 6, MSG_NOSIGNAL | MSG_DONTWAIT);
  is_told = true;
}

static void hear(nfds_t place) {
  char line[MPS_LINE];
  if (recv(sockets[place].fd, line, sizeof line, 0) <= 0)
    drop(place);
  else if (strcmp(line, MPS_LIST) == 0)
    list_clients(place);
  else if (strcmp(line, MPS_STATUS) == 0)
    send(sockets[place].fd, has_failed ? "FAULT\n" : "ACTIVE\n", 8, MSG_NOSIGNAL);
}

int main(int count, char *arguments[]) {
  setenv(MPS_IS_SERVER, "1", 1);
  if (count != 2 || !make_contexts(dlopen(arguments[1], RTLD_NOW)) || (sockets[0].fd = mps_listen("server")) < 0)
    return 1;
  sockets[0].events = POLLIN;
  signal(SIGUSR1, note_fault);
  for (;;) {
    if (has_failed && !is_told)
      tell_of_fault();
    if (poll(sockets, socket_count, -1) < 0)
      continue;
    for (nfds_t i = socket_count - 1; i > 0; i--)
      if (sockets[i].revents)
        hear(i);
    if (sockets[0].revents)
      take_client();
  }
}
