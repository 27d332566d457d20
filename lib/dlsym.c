/*
 * dlsym and dlvsym, caught. Unless the name is one of those that are caught, the real function is entered by a jump, so
 * that it still finds the caller's return address on the stack and RTLD_NEXT still means "after the caller".
 */
#include "hooks.h"
#include "libc_symbols.h"

#include <dlfcn.h>
#include <stddef.h>

#if defined(__clang__) || __GNUC__ >= 15
#define TAIL_CALL __attribute__((musttail)) return
#else
#define TAIL_CALL return /* a jump from -O1 on; tests/preload proves it of the built library */
#endif

/* A wrapper of a caught function that asks for the next one gets ours, which goes on to the driver: the real dlsym
 * would count from us instead of from the wrapper, and could answer with the wrapper itself. */
HOOK void *vgpu_dlsym(void *handle, const char *name) {
  dlsym_function *next = libc_find_dlsym();
  void *ours = handle == RTLD_NEXT ? hooks_of(name) : NULL;
  if (ours != NULL)
    return ours;
  if (handle == RTLD_NEXT || !hooks_catches(name))
    TAIL_CALL next(handle, name);
  return hooks_route(name, next(handle, name));
}

HOOK void *vgpu_dlvsym(void *handle, const char *name, const char *version) {
  dlvsym_function *next = libc_find_dlvsym();
  if (handle == RTLD_NEXT || !hooks_catches(name))
    TAIL_CALL next(handle, name, version);
  return hooks_route(name, next(handle, name, version));
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
