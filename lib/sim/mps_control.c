/*
 * nvidia-cuda-mps-control of the simulated world. With -f it is the daemon, which starts a server for the first client;
 * without, it sends the daemon the command that is on standard input, and prints the answer.
 */
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <signal.h>
#include <sys/wait.h>

#include "mps_wire.h"

#define POLL_US 5000

static pid_t server; /* 0: none */

/* Sets `path` to the file `name` in this program's folder. */
static bool beside(const char *name, char path[PATH_MAX]) {
  ssize_t length = readlink("/proc/self/exe", path, PATH_MAX - 64);
  if (length < 0)
    return false;
  path[length] = '\0';
  strcpy(strrchr(path, '/') + 1, name);
  return true;
}

static bool server_is_alive(void) {
  if (server != 0 && waitpid(server, NULL, WNOHANG) == server)
    server = 0;
  return server != 0;
}

static void run_server(void) {
  char program[PATH_MAX], library[PATH_MAX];
  if (beside("nvidia-cuda-mps-server", program) && beside("libcuda.so.1", library))
    execl(program, program, library, (char *)NULL);
  _exit(127);
}

static bool start_server(void) {
  struct sockaddr_un address;
  if (server_is_alive())
    return true;
  if (!mps_address("server", &address))
    return false;
  unlink(address.sun_path);
  server = fork();
  if (server == 0)
    run_server();
  for (int waited_us = 0; waited_us < MPS_WAIT_MS * 1000 && server_is_alive(); waited_us += POLL_US) {
    int fd = mps_open("server");
    if (fd >= 0) {
      close(fd);
      return true;
    }
    usleep(POLL_US);
  }
  return false;
}

static bool is_of_this_user(int fd) {
  struct ucred who;
  socklen_t size = sizeof who;
  return getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &who, &size) == 0 && who.uid == geteuid();
}

static void ask_server(int of, const char *line, char text[MPS_LINE]) {
  int asked = server_is_alive() && of == server ? mps_open("server") : -1;
  text[0] = '\0';
  if (asked < 0)
    return;
  mps_ask(asked, line, text);
  close(asked);
}

static void answer_of(int fd, int of, const char *line) {
  char text[MPS_LINE];
  ask_server(of, line, text);
  send(fd, text, strlen(text) + 1, MSG_NOSIGNAL);
}

static bool has_failed(void) {
  char text[MPS_LINE];
  ask_server(server, MPS_STATUS, text);
  return strncmp(text, "FAULT", 5) == 0;
}

static void answer_client(int fd) {
  char text[32];
  if (!is_of_this_user(fd) || has_failed() || !start_server())
    return;
  snprintf(text, sizeof text, "%d", (int)server);
  send(fd, text, strlen(text) + 1, MSG_NOSIGNAL);
}

/* Returns whether it goes on. */
static bool answer(int fd) {
  char line[MPS_LINE], text[32] = "";
  int of;
  ssize_t length = recv(fd, line, sizeof line - 1, 0);
  line[length > 0 ? length : 0] = '\0';
  if (strcmp(line, MPS_CLIENT) == 0) {
    answer_client(fd);
  } else if (sscanf(line, "get_client_list %d", &of) == 1) {
    answer_of(fd, of, MPS_LIST);
  } else if (sscanf(line, "get_server_status %d", &of) == 1) {
    answer_of(fd, of, MPS_STATUS);
  } else {
    if (strncmp(line, "get_server_list", 15) == 0 && server_is_alive())
      snprintf(text, sizeof text, "%d\n", (int)server);
    send(fd, text, strlen(text) + 1, MSG_NOSIGNAL);
  }
  return strncmp(line, "quit", 4) != 0;
}

static int serve(void) {
  int listening = mps_listen("control");
  bool goes_on = listening >= 0;
  while (goes_on) {
    int fd = accept(listening, NULL, NULL);
    if (fd < 0)
      continue;
    goes_on = answer(fd);
    close(fd);
  }
  if (server_is_alive())
    kill(server, SIGKILL);
  return listening < 0;
}

int main(int count, char *arguments[]) {
  char line[MPS_LINE], text[MPS_LINE];
  if (count == 2 && strcmp(arguments[1], "-f") == 0)
    return serve();
  if (count != 1 || !fgets(line, sizeof line, stdin))
    return 2;
  int fd = mps_open("control");
  if (fd < 0 || !mps_ask(fd, line, text)) {
    fprintf(stderr, "Cannot find MPS control daemon process\n");
    return 1;
  }
  fputs(text, stdout);
  return 0;
}
