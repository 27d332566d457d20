/*
 * Prints what dlopen, dlsym and dlvsym answer: whether something was found, and what dlerror says then. With an
 * argument, threads and forked children do all that at the same time, as often as it says, and "done" is printed.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

static const char *const names[] = {"dlopen", "dlsym", "dlvsym", "dlmopen", "printf", "no_such_function"};
static const char *const versions[] = {"GLIBC_2.2.5", "GLIBC_2.34", "GLIBC_9"};
static const char *const libraries[] = {NULL, "libc.so.6", "libdl.so.2", "libm.so.6", "libresolv.so.2"};
static const int flags[] = {RTLD_LAZY, RTLD_NOW | RTLD_DEEPBIND, RTLD_NOW | RTLD_NOLOAD | RTLD_DEEPBIND, RTLD_DEEPBIND};
#define COUNT(array) (sizeof(array) / sizeof(array)[0])

static FILE *out;

static void say(const char *what, const char *name, int found) {
  const char *error = dlerror();
  fprintf(out, "%s %s: %d %s\n", what, name ? name : "", found, error ? error : "no error");
}

/* A lookup that finds something leaves no error of the one before. */
static void fail(void) {
  dlopen("no_such_library.so", RTLD_NOW);
}

static void look_up_in(void *handle, const char *where) {
  for (size_t i = 0; i < COUNT(names); i++) {
    fail();
    say(where, names[i], dlsym(handle, names[i]) != NULL);
    for (size_t k = 0; k < COUNT(versions); k++) {
      fail();
      say(where, names[i], dlvsym(handle, names[i], versions[k]) != NULL);
    }
  }
}

static void look_everything_up(void) {
  look_up_in(RTLD_DEFAULT, "default");
  look_up_in(RTLD_NEXT, "next");
  for (size_t i = 0; i < COUNT(libraries); i++)
    for (size_t k = 0; k < COUNT(flags); k++) {
      fail();
      errno = 77;
      void *handle = dlopen(libraries[i], flags[k]);
      int kept = errno == 77;
      say("open", libraries[i], (handle != NULL) + 2 * kept);
      if (handle == NULL)
        continue;
      look_up_in(handle, libraries[i] ? libraries[i] : "program");
      dlclose(handle);
    }
}

static void *look_up_often(void *times) {
  for (long i = 0; i < (long)times; i++)
    look_everything_up();
  return NULL;
}

static void look_up_in_threads(long times) {
  pthread_t threads[8];
  for (size_t i = 0; i < COUNT(threads); i++)
    pthread_create(&threads[i], NULL, look_up_often, (void *)times);
  for (size_t i = 0; i < COUNT(threads); i++)
    pthread_join(threads[i], NULL);
}

int main(int count, char **arguments) {
  out = count > 1 ? fopen("/dev/null", "w") : stdout;
  if (count == 1) {
    look_everything_up();
    return 0;
  }
  look_up_in_threads(atol(arguments[1]));
  pid_t child = fork();
  if (child == 0) {
    look_up_in_threads(atol(arguments[1]));
    _exit(0);
  }
  int status = -1;
  puts(waitpid(child, &status, 0) == child && status == 0 ? "done" : "the child failed");
  return status != 0;
}
