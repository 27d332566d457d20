/* A library of a chain: its step() asks for the next one's, as an interposer does. Compiled with -DNAME="..." and, for
 * all but the last, -DNEXT. -DSTEP=... gives the function another name. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdio.h>

#ifndef STEP
#define STEP step
#endif
#define TEXT(x) #x
#define TEXT_OF(x) TEXT(x)

void STEP(void);

void STEP(void) {
  printf("%s\n", NAME);
#ifdef NEXT
#ifdef VERSIONED
  void (*next)(void) = (void (*)(void))dlvsym(RTLD_NEXT, TEXT_OF(STEP), "STEPS");
#else
  void (*next)(void) = (void (*)(void))dlsym(RTLD_NEXT, TEXT_OF(STEP));
#endif
  if (next != NULL)
    next();
#endif
}
