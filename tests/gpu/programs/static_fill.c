/* A static program, for which no loader reads /etc/ld.so.preload. It takes memory in steps for ever. */
#include <dlfcn.h>
#include <stddef.h>
#include <stdio.h>
#include <unistd.h>

#define STEP_BYTES ((size_t)16 << 20)

int main(int count, char *arguments[]) {
  void *cuda = dlopen(count > 1 ? arguments[1] : "libcuda.so.1", RTLD_NOW), *context;
  unsigned long long pointer;
  if (cuda == NULL) {
    fprintf(stderr, "no driver: %s\n", dlerror());
    return 2;
  }
  int (*init)(unsigned) = (int (*)(unsigned))dlsym(cuda, "cuInit");
  int (*create)(void **, unsigned, int) = (int (*)(void **, unsigned, int))dlsym(cuda, "cuCtxCreate_v2");
  int (*allocate)(unsigned long long *, size_t) = (int (*)(unsigned long long *, size_t))dlsym(cuda, "cuMemAlloc_v2");
  if (init(0) != 0 || create(&context, 0, 0) != 0)
    return 3;
  while (allocate(&pointer, STEP_BYTES) == 0)
    usleep(10000);
  pause();
}
