/* A library of a chain: its step() asks for the next one's, as an interposer does. Compiled with -DNAME="..." and, for
 * all but the last, -DNEXT. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdio.h>

void step(void);

void step(void) {
  printf("%s\n", NAME);
#ifdef NEXT
#ifdef VERSIONED
  void (*next)(void) = (void (*)(void))dlvsym(RTLD_NEXT, "step", "STEPS");
#else
  void (*next)(void) = (void (*)(void))dlsym(RTLD_NEXT, "step");
#endif
  if (next != NULL)
    next();
#endif
}
