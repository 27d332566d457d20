/* The program tells the host what it found, a line of JSON each, and waits where the host is to look itself. */
#pragma once

#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#define LOOK_MS 10

/* Waits for a line on standard input; ends the program where there is nobody. Nothing is read ahead: it is shared. */
static inline void await_host(void) {
  char character = 0;
  fflush(stdout);
  while (character != '\n')
    if (read(STDIN_FILENO, &character, 1) != 1)
      exit(4);
}

/* Waits a moment; ends the program, and with it its children, once nobody is there who would read what it says. */
static inline void look_for_host(void) {
  struct pollfd input = {.fd = STDIN_FILENO};
  if (poll(&input, 1, LOOK_MS) > 0 && (input.revents & POLLHUP) != 0)
    _exit(4);
}
