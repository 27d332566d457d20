/* Ways of a program that means to pass its limits: past the library, or by what the library reads and writes. */
#pragma once

/* Comes to the driver in the way of that name, takes memory until refused or until it has `what` bytes, or works for
 * `what` seconds, says so, and waits for a line. `arguments` are the program's own, with which it starts itself again;
 * the second one says which of both. */
int escape_run(char *arguments[], const char *name, const char *what);
