/*
 * A preload that wraps dlopen and, with -DWRAPS_DLSYM, dlsym, as overlays do, and says on standard error what of
 * plugin.c passes through it. Compiled with -DNAME="..." and -DREAL=..., an expression that finds the function of the
 * name `name` that it wraps.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdio.h>
#include <string.h>

/* The C library's handle must not come by our own dlopen. */
#define LIBC dlmopen(LM_ID_BASE, "libc.so.6", RTLD_LAZY)

static void *real(const char *name) {
  return REAL;
}

static void say(const char *function, const char *name) {
  if (name != NULL && (strstr(name, "plugin.so") || strcmp(name, "cuMemAlloc_v2") == 0))
    fprintf(stderr, "%s: %s %s\n", NAME, function, name);
}

void *dlopen(const char *path, int flags) {
  say("dlopen", path);
  return ((void *(*)(const char *, int))real("dlopen"))(path, flags);
}

#ifdef WRAPS_DLSYM
void *dlsym(void *handle, const char *name) {
  say("dlsym", name);
  return ((void *(*)(void *, const char *))real("dlsym"))(handle, name);
}
#endif
