#include "escapes.h"

#include "child.h"
#include "compute.h"
#include "driver.h"
#include "files.h"
#include "start.h"
#include "talk.h"

#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/wait.h>

#define DIRECT "direct" /* the name under which the program starts itself again */
#define SHORT_LIVED "short processes"
#define SHORT_S 0.3 /* each of them works so long */
#define PRELOAD "/etc/ld.so.preload"
#define NIX_PRELOAD "/etc/ld-nix.so.preload"
#define LIMITS "/.vgpurun/etc/limits"
#define USAGE "/.vgpurun/run/usage"
#define LIMIT_OFFSET 112 /* place of the first device's memory limit in the limits file */
#define LIMIT_SIZE 8
#define CHUNK_BYTES ((size_t)32 << 20)
#define NOBODY 65534
#define NEW_NAMESPACE (-1L) /* LM_ID_NEWLM */
#define NOW 2               /* RTLD_NOW */
#define DEEPBIND 8          /* RTLD_DEEPBIND */

__asm__(".symver own_dlopen, dlopen@" FIRST_GLIBC);
__asm__(".symver own_dlsym, dlsym@" FIRST_GLIBC);
__asm__(".symver own_dlerror, dlerror@" FIRST_GLIBC);
__asm__(".symver own_dlmopen, dlmopen@" FIRST_DLMOPEN);
void *own_dlopen(const char *name, int flags);
void *own_dlsym(void *library, const char *name);
char *own_dlerror(void);
void *own_dlmopen(long space, const char *name, int flags);

static const char *way;
static char **own_arguments;

/* The way is closed: by the kernel, by the container or by its image. */
static _Noreturn void closed_because(const char *what, const char *reason) {
  printf("{\"escape\": \"%s\", \"closed\": \"%s: %s\"}\n", way, what, reason);
  fflush(stdout);
  _exit(0);
}

static _Noreturn void closed(const char *what) {
  closed_because(what, strerror(errno));
}

static _Noreturn void start_again(const char *program, char *loader, char *environment[]) {
  char *again[] = {loader, own_arguments[0], own_arguments[1], own_arguments[2], DIRECT, (char *)way, NULL};
  execve(program, loader != NULL ? again : again + 1, environment);
  closed("execve");
}

/* ---- ways to the driver ------------------------------------------------------------------------------------------ */

#define NEEDED(X)                                                                                                      \
  X(cuInit)                                                                                                            \
  X(cuCtxCreate_v2)                                                                                                    \
  X(cuMemAlloc_v2)                                                                                                     \
  X(cuDeviceGetAttribute) X(cuModuleLoadData) X(cuModuleGetFunction) X(cuLaunchKernel) X(cuCtxSynchronize)

static void take_functions(void *cuda) {
#define X(f) driver.f = (__typeof__(driver.f))own_dlsym(cuda, #f);
  NEEDED(X)
#undef X
}

static void by_dlopen(void) {
  take_functions(own_dlopen("libcuda.so.1", NOW));
}

static void by_deepbind(void) {
  take_functions(own_dlopen("libcuda.so.1", NOW | DEEPBIND));
}

static void by_namespace(void) {
  void *cuda = own_dlmopen(NEW_NAMESPACE, "libcuda.so.1", NOW);
  if (cuda == NULL)
    closed_because("dlmopen", own_dlerror());
  take_functions(cuda);
}

static void by_copy(void) {
  char path[FILE_PATH];
  own_dlopen("libcuda.so.1", NOW);
  if (!file_mapped("libcuda.so", path) || !file_copy(path, "/tmp/other.so", NULL, NULL, 0755))
    closed("a copy of the driver");
  void *cuda = own_dlopen("/tmp/other.so", NOW);
  if (cuda == NULL)
    closed("dlopen");
  take_functions(cuda);
}

static void by_symbols(void) {
  own_dlopen("libcuda.so.1", NOW);
#define X(f) driver.f = (__typeof__(driver.f))file_symbol("libcuda.so", #f);
  NEEDED(X)
#undef X
  if (driver.cuInit == NULL)
    closed("the driver's symbols");
}

/* ---- ways to a program without the library ----------------------------------------------------------------------- */

static void without_environment(void) {
  char *empty[] = {NULL};
  start_again("/proc/self/exe", NULL, empty);
}

/* They name a limits file in which the first device's memory has no limit. */
static void with_variables(void) {
  char *lies[] = {"CUDA_DISABLE_CONTROL=true",
                  "CUDA_DEVICE_MEMORY_LIMIT=1000g",
                  "CUDA_DEVICE_SM_LIMIT=0",
                  "VGPURUN_LIMITS_FILE=/tmp/limits",
                  "CUDA_DEVICE_MEMORY_SHARED_CACHE=/tmp/usage",
                  NULL};
  if (!file_copy(LIMITS, "/tmp/limits", NULL, NULL, 0644) ||
      !file_write("/tmp/limits", LIMIT_OFFSET, 0xff, LIMIT_SIZE) || !file_copy(USAGE, "/tmp/usage", NULL, NULL, 0666))
    closed("copies of the limits and the usage file");
  start_again("/proc/self/exe", NULL, lies);
}

static _Noreturn void start_by_loader_that_reads(const char *preload) {
  char path[FILE_PATH];
  if (!file_loader(path) || !file_copy(path, "/tmp/loader", PRELOAD, preload, 0755))
    closed("a copy of the loader");
  char program[FILE_PATH];
  ssize_t size = readlink("/proc/self/exe", program, sizeof program - 1);
  if (size < 0)
    closed("readlink");
  program[size] = '\0';
  own_arguments[0] = program;
  start_again("/tmp/loader", "/tmp/loader", environ);
}

/* Like a static program: one whose loader does not know the preload file. */
static void with_own_loader(void) {
  start_by_loader_that_reads("/tmp/no.so.preload");
}

/* Nix's has a longer name for it, for which there is no room in another loader. */
static void with_nix_loader(void) {
  if (symlink(NIX_PRELOAD, "/tmp/ld.so.preload") != 0)
    closed("a link to " NIX_PRELOAD);
  start_by_loader_that_reads("/tmp/ld.so.preload");
}

static void unmounted(void) {
  if (umount2(PRELOAD, MNT_DETACH) != 0)
    closed("umount");
  start_again("/proc/self/exe", NULL, environ);
}

static void in_mount_namespace(void) {
  if (unshare(CLONE_NEWNS) != 0)
    closed("unshare");
  unmounted();
}

static void setuid_root(void) {
  if (!file_copy("/proc/self/exe", "/tmp/setuid", NULL, NULL, 04755))
    closed("a copy of the program");
  if (setuid(NOBODY) != 0)
    closed("setuid");
  start_again("/tmp/setuid", NULL, environ);
}

/* ---- what the library reads and writes --------------------------------------------------------------------------- */

static void with_forged_limits(void) {
  if (!file_fill(LIMITS, 0xff))
    closed("the limits file");
  by_dlopen();
}

static void forge_usage(void) {
  file_fill(USAGE, 0);
}

static void close_usage(void) {
  file_close_all(USAGE);
}

struct escape {
  const char *name;
  void (*come)(void);
  void (*between)(void); /* two allocations */
};

static const struct escape escapes[] = {
    {"plain", by_dlopen, NULL},
    {"empty environment", without_environment, NULL},
    {"lying variables", with_variables, NULL},
    {"RTLD_DEEPBIND", by_deepbind, NULL},
    {"setuid program", setuid_root, NULL},
    {"Nix's loader", with_nix_loader, NULL},
    {"forged limits file", with_forged_limits, NULL},
    {"forged usage file", by_dlopen, forge_usage},
    {"closed usage file", by_dlopen, close_usage},
    {"dlmopen", by_namespace, NULL},
    {"copy of the driver", by_copy, NULL},
    {"driver's own symbols", by_symbols, NULL},
    {"loader of its own", with_own_loader, NULL},
    {SHORT_LIVED, with_own_loader, NULL},
    {"unmounted preload", unmounted, NULL},
    {"mount namespace", in_mount_namespace, NULL},
    {DIRECT, by_dlopen, NULL},
};

static void take(const struct escape *escape, size_t most_bytes) {
  CUcontext context;
  CUdeviceptr pointer;
  size_t granted_bytes = 0;
  must(driver.cuInit(0), "cuInit");
  CUresult result = driver.cuCtxCreate_v2(&context, 0, 0);
  while (result == CUDA_SUCCESS && granted_bytes < most_bytes) {
    if (escape->between != NULL)
      escape->between();
    result = driver.cuMemAlloc_v2(&pointer, CHUNK_BYTES);
    granted_bytes += result == CUDA_SUCCESS ? CHUNK_BYTES : 0;
    usleep(1000);
  }
  printf("{\"escape\": \"%s\", \"answer\": %d, \"granted_bytes\": %zu}\n", way, (int)result, granted_bytes);
  await_host();
}

/* ---- time -------------------------------------------------------------------------------------------------------- */

/* Works until an instant, and returns how many kernels ended from another one on. */
static long work(const struct escape *escape, double from_s, double until_s) {
  CUcontext context;
  must(driver.cuInit(0), "cuInit");
  must(driver.cuCtxCreate_v2(&context, 0, 0), "cuCtxCreate");
  if (escape->between != NULL)
    escape->between();
  return compute_ended(from_s, until_s);
}

static long work_in_child(const struct escape *escape, double from_s, double until_s) {
  int ends[2];
  long ended = 0;
  if (pipe(ends) != 0)
    exit(3);
  if (fork_child() == 0) {
    ended = work(escape, from_s, until_s);
    _exit(write(ends[1], &ended, sizeof ended) == sizeof ended ? 0 : 3);
  }
  close(ends[1]);
  if (read(ends[0], &ended, sizeof ended) != sizeof ended)
    exit(3);
  close(ends[0]);
  while (wait(NULL) > 0) {
  }
  return ended;
}

/* Counts the second half alone, since a guard has to notice the escape before it can stop it. */
static void take_time(const struct escape *escape, double seconds) {
  double begin_s = compute_now_s(), end_s = begin_s + seconds, from_s = begin_s + seconds / 2;
  long ended = 0;
  if (strcmp(way, SHORT_LIVED) == 0)
    for (double now_s = begin_s; now_s < end_s; now_s = compute_now_s())
      ended += work_in_child(escape, from_s, now_s + SHORT_S);
  else
    ended = work(escape, from_s, end_s);
  printf("{\"escape\": \"%s\", \"kernels_per_second\": %.1f}\n", way, (double)ended / (compute_now_s() - from_s));
  await_host();
}

int escape_run(char *arguments[], const char *name, const char *what) {
  bool is_time = strcmp(arguments[1], "work") == 0;
  own_arguments = arguments;
  way = strcmp(name, DIRECT) == 0 ? arguments[4] : name;
  for (size_t i = 0; i < sizeof escapes / sizeof escapes[0]; i++)
    if (strcmp(escapes[i].name, name) == 0) {
      escapes[i].come();
      if (is_time)
        take_time(&escapes[i], strtod(what, NULL));
      else
        take(&escapes[i], strtoull(what, NULL, 10));
      return 0;
    }
  fprintf(stderr, "vgpurun-verify: there is no way '%s'\n", name);
  return 2;
}
