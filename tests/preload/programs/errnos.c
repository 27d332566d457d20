/*
 * Calls every function that the library catches, without any argument that means something, and prints those after
 * which errno is another one. Since every call of the driver takes a lock, this program's own pthread_mutex_lock makes
 * each of them change errno.
 *
 *   errnos [recorded]    recorded: also the functions that a profile alone catches
 */
#define _GNU_SOURCE
#include "hook/hooks.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>

#define CALLERS_ERRNO 4711

typedef int call(void *, void *, void *, void *, void *, void *, void *, void *, void *, void *, void *, void *);

int pthread_mutex_lock(pthread_mutex_t *mutex) {
  static int (*next)(pthread_mutex_t *);
  if (next == NULL)
    *(void **)&next = dlsym(RTLD_NEXT, "pthread_mutex_lock");
  int result = next(mutex);
  errno = EIO;
  return result;
}

static void check(const char *name, void (*function)(void)) {
  errno = CALLERS_ERRNO;
  ((call *)function)(NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL);
  if (errno != CALLERS_ERRNO)
    puts(name);
}
#define CHECK(f) check(#f, (void (*)(void))entry_##f);

int main(int count, char **arguments) {
  CUcontext context;
  entry_cuInit(0);
  entry_cuDevicePrimaryCtxRetain(&context, 0);
  entry_cuCtxSetCurrent(context);
  CUDA_LOOKUP(CHECK)
  CUDA_CAUGHT(CHECK)
  NVML_CAUGHT(CHECK)
  if (count > 1 && strcmp(arguments[1], "recorded") == 0) {
    CUDA_PROFILED(CHECK)
  }
  return 0;
}
