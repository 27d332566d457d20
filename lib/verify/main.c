/*
 * A program that tries to pass its limits: `vgpurun verify` runs it in a container, or on the host, and judges what it
 * says. It needs the C library, libcuda and libnvidia-ml, and knows nothing of vgpurun.
 *
 *   vgpurun-verify memory CHUNK_BYTES     take memory in every way until refused; after each "hold" a line is awaited
 *   vgpurun-verify clean CHUNK_BYTES      the first of these ways, with no variable in the environment
 *   vgpurun-verify compute SECONDS        work in every way, so long each
 *   vgpurun-verify escape BYTES NAME      take so much memory past the limits, in the way of that name
 *   vgpurun-verify work SECONDS NAME      work for so long past them, in that way
 *
 * Each way has a process of its own.
 */
#include "child.h"
#include "compute.h"
#include "driver.h"
#include "escapes.h"
#include "memory.h"
#include "talk.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

static void end_child(void) {
  fflush(stdout);
  _exit(0);
}

/* Whatever becomes of one way, the others are tried. */
static void wait_for(const char *name) {
  int status = 0;
  while (waitpid(-1, &status, WNOHANG) == 0)
    look_for_host();
  if (status != 0)
    printf("{\"path\": \"%s\", \"ended\": %d}\n", name, WIFSIGNALED(status) ? -WTERMSIG(status) : WEXITSTATUS(status));
  fflush(stdout);
}

static void in_child(const struct memory_path *path, size_t chunk_bytes) {
  if (fork_child() == 0) {
    if (path->name != NULL)
      path->run(path, chunk_bytes);
    else {
      driver_start();
      memory_show_view();
    }
    end_child();
  }
  wait_for(path->name != NULL ? path->name : "view");
}

static int try_memory(size_t chunk_bytes) {
  static const struct memory_path view = {0};
  in_child(&view, 0);
  for (const struct memory_path *path = memory_paths; path->name != NULL; path++)
    in_child(path, chunk_bytes);
  return 0;
}

static int try_compute(double seconds) {
  for (const struct compute_path *path = compute_paths; path->name != NULL; path++) {
    if (fork_child() == 0) {
      compute_run(path, seconds);
      end_child();
    }
    wait_for(path->name);
  }
  return 0;
}

/* The program again, without LD_PRELOAD and LD_LIBRARY_PATH, as after `env -i`, su or ssh. */
static int try_clean(char *arguments[]) {
  char *empty[] = {NULL};
  if (getenv("LD_PRELOAD") != NULL || getenv("LD_LIBRARY_PATH") != NULL) {
    execve("/proc/self/exe", arguments, empty);
    return 3;
  }
  struct memory_path path = memory_paths[0];
  path.name = "an empty environment";
  in_child(&path, strtoull(arguments[2], NULL, 10));
  return 0;
}

static void end(int number) {
  _exit(128 + number);
}

int main(int count, char *arguments[]) {
  setvbuf(stdout, NULL, _IOLBF, 0);
  /* The first process of a container gets no signal but those that it handles. */
  signal(SIGINT, end);
  signal(SIGTERM, end);
  if (count == 3 && strcmp(arguments[1], "memory") == 0)
    return try_memory(strtoull(arguments[2], NULL, 10));
  if (count == 3 && strcmp(arguments[1], "clean") == 0)
    return try_clean(arguments);
  if (count == 3 && strcmp(arguments[1], "compute") == 0)
    return try_compute(strtod(arguments[2], NULL));
  if (count >= 4 && (strcmp(arguments[1], "escape") == 0 || strcmp(arguments[1], "work") == 0))
    return escape_run(arguments, arguments[3], arguments[2]);
  fprintf(stderr,
          "usage: vgpurun-verify memory|clean CHUNK_BYTES | compute SECONDS | escape BYTES NAME | work SECONDS NAME\n");
  return 2;
}
