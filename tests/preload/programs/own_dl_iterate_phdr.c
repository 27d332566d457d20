/* A program with a dl_iterate_phdr of its own, as databases have that throw many exceptions: it asks dlsym for the real
 * one. Prints "iterated". */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <link.h>
#include <stdio.h>

typedef int visit(struct dl_phdr_info *object, size_t size, void *argument);

int dl_iterate_phdr(visit *each, void *argument) {
  int (*real)(visit *, void *) = (int (*)(visit *, void *))dlsym(RTLD_NEXT, "dl_iterate_phdr");
  return real != NULL ? real(each, argument) : 0;
}

static int stop(struct dl_phdr_info *object, size_t size, void *argument) {
  (void)object, (void)size, (void)argument;
  return 1;
}

int main(void) {
  puts(dl_iterate_phdr(stop, NULL) ? "iterated" : "nothing");
  return 0;
}
