/*
 * dlopen, dlsym and dlvsym, caught. The next one is entered by a jump, so that it still finds the caller's return
 * address on the stack: RTLD_NEXT still means "after the caller", and a RUNPATH is still the caller's.
 *
 * There are two of each. The exported one goes on to what the program would have called without us: another preload's,
 * or the C library's. The other takes the place of the C library's own in what lookups answer, and goes on to that: a
 * wrapper that has looked it up must not come back to itself.
 */
#include "base/libc_symbols.h"
#include "hook/hooks.h"
#include "profile/disk.h"
#include "shared/level_files.h"

#include <dlfcn.h>
#include <stdbool.h>
#include <stddef.h>

/* ---- routes: our functions for the driver's, by address ---------------------------------------------------------- */

struct route {
  const char *name;
  void **real;
  void *hook;
  bool only_profiled; /* caught while there is a profile, or a host that may take the GPUs away */
};

#define ENTERED(f) {#f, (void **)&real.f, (void *)entry_##f, false},
#define PROFILED(f) {#f, (void **)&real.f, (void *)entry_##f, true},
static const struct route cuda_routes[] = {CUDA_LOOKUP(ENTERED) CUDA_CAUGHT(ENTERED) CUDA_PROFILED(PROFILED)};
static const struct route nvml_routes[] = {NVML_CAUGHT(ENTERED)};
#define COUNT(routes) (sizeof(routes) / sizeof(routes)[0])

struct library {
  const char *prefix; /* its functions' names begin with it */
  const struct route *routes;
  size_t count;
  bool (*is_loaded)(void);
};
static const struct library cuda = {"cu", cuda_routes, COUNT(cuda_routes), hooks_cuda_is_loaded};
static const struct library nvml = {"nvml", nvml_routes, COUNT(nvml_routes), hooks_nvml_is_loaded};

static bool is_routed(const struct route *route) {
  return !route->only_profiled || profile_is_wanted() || level_files_have_limits();
}

/* The library that a function of this name would be in. */
static const struct library *library_of(const char *name) {
  if (name != NULL && text_begins_with(name, cuda.prefix))
    return &cuda;
  if (name != NULL && text_begins_with(name, nvml.prefix))
    return &nvml;
  return NULL;
}

static const struct route *exported(const struct library *library, const char *name) {
  for (size_t i = 0; library != NULL && i < library->count; i++)
    if (text_equals(library->routes[i].name, name))
      return &library->routes[i];
  return NULL;
}

static const struct route *caught(const struct library *library, const char *name) {
  const struct route *route = exported(library, name);
  return route != NULL && is_routed(route) ? route : NULL;
}

/* Hands out our functions for the driver's, by address. Knows no policy. */

/* Do we export a function of this very name? Where it is caught, its library's real functions are loaded now, so that
 * dlerror speaks of the caller's lookup afterwards, not of ours. */
static bool routes_have(const char *name) {
  const struct library *library = library_of(name);
  const struct route *route = exported(library, name);
  if (route == NULL || !is_routed(route))
    return route != NULL;
  if (library == &cuda)
    hooks_load_cuda();
  else
    hooks_load_nvml_if_there();
  return true;
}

/* The address that a lookup hands out: our function where `address` is a real one that is caught, else `address`. Only
 * a library that the program has loaded itself can have answered its lookup. */
static void *routes_to(const char *name, void *address) {
  const struct library *library = address != NULL ? library_of(name) : NULL;
  if (library == NULL || !library->is_loaded())
    return address;
  for (size_t i = 0; i < library->count; i++)
    if (*library->routes[i].real == address && is_routed(&library->routes[i]))
      return library->routes[i].hook;
  return address;
}

/* Our function for the real one of this name; NULL where there is none. */
static void *routes_of(const char *name) {
  const struct library *library = library_of(name);
  const struct route *route = caught(library, name);
  return route != NULL && library->is_loaded() && !hooks_is_missing(*route->real) ? route->hook : NULL;
}

/* ---- lookups ----------------------------------------------------------------------------------------------------- */

#if defined(__clang__) || __GNUC__ >= 15
#define TAIL_CALL __attribute__((musttail)) return
#else
#define TAIL_CALL return /* a jump from -O1 on; tests/preload proves it of the built library */
#endif

#define CALLER __builtin_return_address(0)

static dlopen_function libcs_dlopen;
static dlsym_function libcs_dlsym;
static dlvsym_function libcs_dlvsym;

/* Returns what takes the place of the C library's function of this name; NULL: nothing does. */
static void *in_place_of(const char *name) {
  return text_equals(name, "dlopen")   ? (void *)libcs_dlopen
         : text_equals(name, "dlsym")  ? (void *)libcs_dlsym
         : text_equals(name, "dlvsym") ? (void *)libcs_dlvsym
                                       : NULL;
}

static bool is_libcs(const void *address) {
  return address == (void *)libc_find_dlopen() || address == (void *)libc_find_dlsym() ||
         address == (void *)libc_find_dlvsym();
}

static bool is_exported(const char *name) {
  return name != NULL && (in_place_of(name) != NULL || routes_have(name));
}

static void *route(const char *name, void *address) {
  return is_libcs(address) ? in_place_of(name) : routes_to(name, address);
}

/* Answers RTLD_NEXT, which the real dlsym would count from us: with ours, where the real function comes next after the
 * caller, or came before it. NULL where another wrapper comes next, or what we export: the real dlsym finds these. */
static void *answer_next(const void *caller, const char *name) {
  void *next = libc_find_after(caller, name);
  if (next == NULL)
    return in_place_of(name) != NULL ? in_place_of(name) : routes_of(name);
  void *ours = route(name, next);
  return ours != next ? ours : NULL;
}

/* Would a search of all objects find nothing without us, who come first? Then the error is that of one behind us. */
static bool is_ours_alone(const char *name, const void *found) {
  const struct route *route = found != NULL ? exported(library_of(name), name) : NULL;
  return route != NULL && route->hook == found && libc_dlsym(RTLD_NEXT, name) == NULL;
}

static const char nothing;
#define NOTHING ((void *)&nothing)

/* Answers the lookup of a name that we export. `found` is what the real one says to us; NULL: what it says to the
 * caller. */
static void *answer(const void *caller, void *handle, const char *name, void *found) {
  if (found != NULL && handle == RTLD_NEXT)
    return answer_next(caller, name);
  return handle == RTLD_DEFAULT && is_ours_alone(name, found) ? NOTHING : route(name, found);
}

/* Returns the handle with which we look a name up ourselves. By RTLD_DEFAULT everyone finds what we export: so it is
 * known whether there is such a version, and no error is left behind. */
static void *place_of(void *handle) {
  return handle == RTLD_NEXT ? RTLD_DEFAULT : handle;
}

/* Threads may do this at the same time: they find the same. */
static void *after_us(void **known, const char *name, void *libcs) {
  void *next = __atomic_load_n(known, __ATOMIC_RELAXED);
  if (next == NULL) {
    next = libc_dlsym(RTLD_NEXT, name);
    __atomic_store_n(known, next, __ATOMIC_RELAXED);
  }
  return next != NULL ? next : libcs;
}

static dlopen_function *next_dlopen(void) {
  static void *known;
  return (dlopen_function *)after_us(&known, "dlopen", (void *)libc_find_dlopen());
}

static dlsym_function *next_dlsym(void) {
  static void *known;
  return (dlsym_function *)after_us(&known, "dlsym", (void *)libc_find_dlsym());
}

static dlvsym_function *next_dlvsym(void) {
  static void *known;
  return (dlvsym_function *)after_us(&known, "dlvsym", (void *)libc_find_dlvsym());
}

/* The body of all four: `next` is asked for the caller's handle and what follows it, the name first. */
#define LOOK_UP(next, ...)                                                                                             \
  void *answered = is_exported(name) ? answer(CALLER, handle, name, next(place_of(handle), __VA_ARGS__)) : NULL;       \
  if (answered != NULL)                                                                                                \
    return answered != NOTHING ? answered : NULL;                                                                      \
  TAIL_CALL next(handle, __VA_ARGS__)

HOOK void *vgpu_dlsym(void *handle, const char *name) {
  LOOK_UP(next_dlsym(), name);
}

HOOK void *vgpu_dlvsym(void *handle, const char *name, const char *version) {
  LOOK_UP(next_dlvsym(), name, version);
}

static void *libcs_dlsym(void *handle, const char *name) {
  LOOK_UP(libc_find_dlsym(), name);
}

static void *libcs_dlvsym(void *handle, const char *name, const char *version) {
  LOOK_UP(libc_find_dlvsym(), name, version);
}

/* RTLD_DEEPBIND would send a library's calls to what it is linked with before they come here. */
#ifndef RTLD_DEEPBIND
#define RTLD_DEEPBIND 0 /* musl has none */
#endif

HOOK void *vgpu_dlopen(const char *path, int flags) {
  TAIL_CALL next_dlopen()(path, flags & ~RTLD_DEEPBIND);
}

static void *libcs_dlopen(const char *path, int flags) {
  TAIL_CALL libc_find_dlopen()(path, flags & ~RTLD_DEEPBIND);
}

/* Exported at every version that glibc has had of them; libvgpu.map declares the versions. */
#ifdef __GLIBC__
#if defined(__x86_64__)
#define FIRST_VERSION "GLIBC_2.2.5"
#elif defined(__aarch64__)
#define FIRST_VERSION "GLIBC_2.17"
#endif
#define EXPORTED(name)                                                                                                 \
  HOOK extern __typeof__(vgpu_##name) vgpu_##name##_first __attribute__((alias("vgpu_" #name)));                       \
  __asm__(".symver vgpu_" #name "_first, " #name "@" FIRST_VERSION);                                                   \
  __asm__(".symver vgpu_" #name ", " #name "@@GLIBC_2.34");
EXPORTED(dlvsym)
#else
#define EXPORTED(name) HOOK extern __typeof__(vgpu_##name) name __attribute__((alias("vgpu_" #name)));
#endif
EXPORTED(dlopen)
EXPORTED(dlsym)

/* ---- the driver's own lookup: whatever it answers is routed by address ------------------------------------------ */

/* The driver's own lookup. Whatever it answered, for whatever version and flags, is routed by address. */

CUresult cuGetProcAddress(const char *symbol, void **function, int version, cuuint64_t flags) {
  hooks_load_cuda();
  CUresult result = real.cuGetProcAddress(symbol, function, version, flags);
  if (result == CUDA_SUCCESS && function != NULL)
    *function = routes_to(symbol, *function);
  return result;
}

CUresult cuGetProcAddress_v2(const char *symbol, void **function, int version, cuuint64_t flags,
                             CUdriverProcAddressQueryResult *status) {
  hooks_load_cuda();
  CUresult result = real.cuGetProcAddress_v2(symbol, function, version, flags, status);
  if (result == CUDA_SUCCESS && function != NULL)
    *function = routes_to(symbol, *function);
  return result;
}

HOOK CUresult entry_cuGetProcAddress(const char *symbol, void **function, int version, cuuint64_t flags) {
  return KEEPING_ERRNO(cuGetProcAddress(symbol, function, version, flags));
}

HOOK CUresult entry_cuGetProcAddress_v2(const char *symbol, void **function, int version, cuuint64_t flags,
                                        CUdriverProcAddressQueryResult *status) {
  return KEEPING_ERRNO(cuGetProcAddress_v2(symbol, function, version, flags, status));
}
