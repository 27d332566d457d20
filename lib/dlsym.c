/*
 * dlsym and dlvsym, caught. Unless the name looks like one of the driver's, the real function is entered by a jump, so
 * that it still finds the caller's return address on the stack and RTLD_NEXT still means "after the caller".
 */
#include "hooks.h"
#include "libc_symbols.h"

#include <stddef.h>
#include <string.h>

static bool may_be_caught(const char *name) {
  return name != NULL && ((name[0] == 'c' && name[1] == 'u') || strncmp(name, "nvml", 4) == 0);
}

#if defined(__clang__) || __GNUC__ >= 15
#define TAIL_CALL __attribute__((musttail)) return
#else
#define TAIL_CALL return /* a jump from -O1 on; tests/preload proves it of the built library */
#endif

HOOK void *vgpu_dlsym(void *handle, const char *name) {
  if (!may_be_caught(name)) {
    dlsym_function *next = libc_find_dlsym();
    TAIL_CALL next(handle, name);
  }
  return hooks_route(name, libc_find_dlsym()(handle, name));
}

HOOK void *vgpu_dlvsym(void *handle, const char *name, const char *version) {
  if (!may_be_caught(name)) {
    dlvsym_function *next = libc_find_dlvsym();
    TAIL_CALL next(handle, name, version);
  }
  return hooks_route(name, libc_find_dlvsym()(handle, name, version));
}

/* Exported at every version that glibc has had of them; libvgpu.map declares the versions. */
#ifdef __GLIBC__
#if defined(__x86_64__)
#define FIRST_VERSION "GLIBC_2.2.5"
#elif defined(__aarch64__)
#define FIRST_VERSION "GLIBC_2.17"
#endif
HOOK extern __typeof__(vgpu_dlsym) vgpu_dlsym_first __attribute__((alias("vgpu_dlsym")));
HOOK extern __typeof__(vgpu_dlvsym) vgpu_dlvsym_first __attribute__((alias("vgpu_dlvsym")));
__asm__(".symver vgpu_dlsym_first, dlsym@" FIRST_VERSION);
__asm__(".symver vgpu_dlvsym_first, dlvsym@" FIRST_VERSION);
__asm__(".symver vgpu_dlsym, dlsym@@GLIBC_2.34");
__asm__(".symver vgpu_dlvsym, dlvsym@@GLIBC_2.34");
#else
HOOK extern __typeof__(vgpu_dlsym) dlsym __attribute__((alias("vgpu_dlsym")));
#endif
