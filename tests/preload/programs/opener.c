/* Opens a plugin (plugin.c) with RTLD_DEEPBIND, and prints how much GPU memory that gets. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdio.h>

int main(int count, char **arguments) {
  void *plugin = count > 1 ? dlopen(arguments[1], RTLD_NOW | RTLD_DEEPBIND) : NULL;
  long (*held_mib)(void) = plugin != NULL ? (long (*)(void))dlsym(plugin, "held_mib") : NULL;
  if (held_mib == NULL)
    return puts(dlerror()), 1;
  printf("%ld\n", held_mib());
  return 0;
}
