/*
 * The two facts that routing by address stands on: no two exports of libcuda share an address, and whatever
 * cuGetProcAddress answers is the address of an export. Reads the names of the exports from standard input.
 */
#include <dlfcn.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef int lookup(const char *, void **, int, uint64_t, int *);

static char names[4096][128];
static void *addresses[4096];
static int count;

static int is_export(void *address) {
  for (int i = 0; i < count; i++)
    if (addresses[i] == address)
      return 1;
  return 0;
}

int main(void) {
  void *library = dlopen("libcuda.so.1", RTLD_NOW);
  lookup *proc_address = library ? (lookup *)dlsym(library, "cuGetProcAddress_v2") : NULL;
  int (*init)(unsigned) = library ? (int (*)(unsigned))dlsym(library, "cuInit") : NULL;
  if (proc_address == NULL || init == NULL || init(0) != 0)
    return 2;
  int shared = 0, strange = 0, answers = 0;
  while (count < 4096 && scanf("%127s", names[count]) == 1) {
    void *address = dlsym(library, names[count]);
    if (address == NULL)
      continue;
    if (is_export(address)) {
      fprintf(stderr, "%s shares its address\n", names[count]);
      shared++;
    }
    addresses[count++] = address;
  }
  for (int i = 0; i < count; i++) {
    char base[128];
    memcpy(base, names[i], sizeof base);
    base[strcspn(base, "_")] = '\0';
    for (int version = 2000; version <= 13000; version += 1000)
      for (uint64_t flags = 0; flags <= 2; flags++) {
        void *function = NULL;
        int status;
        if (proc_address(base, &function, version, flags, &status) != 0 || function == NULL)
          continue;
        answers++;
        if (!is_export(function)) {
          fprintf(stderr, "%s at version %d: no export's address\n", base, version);
          strange++;
        }
      }
  }
  printf("{\"exports\": %d, \"answers\": %d, \"shared\": %d, \"strange\": %d}\n", count, answers, shared, strange);
  return shared || strange;
}
