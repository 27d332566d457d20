#include "entry/routes.h"

#include "base/text.h"
#include "hook/hooks.h"
#include "profile/wanted.h"

#include <stddef.h>

struct route {
  const char *name;
  void **real;
  void *hook;
  bool only_profiled; /* caught while there is a profile */
};

#define ENTERED(f) {#f, (void **)&real.f, (void *)entry_##f, false},
#define PROFILED(f) {#f, (void **)&real.f, (void *)entry_##f, true},
static const struct route cuda_routes[] = {CUDA_LOOKUP(ENTERED) CUDA_CAUGHT(ENTERED) CUDA_PROFILED(PROFILED)};
static const struct route nvml_routes[] = {NVML_CAUGHT(ENTERED)};
#define COUNT(routes) (sizeof(routes) / sizeof(routes)[0])

struct library {
  const char *prefix; /* of its functions' names */
  const struct route *routes;
  size_t count;
  bool (*is_loaded)(void);
};
static const struct library cuda = {"cu", cuda_routes, COUNT(cuda_routes), hooks_cuda_is_loaded};
static const struct library nvml = {"nvml", nvml_routes, COUNT(nvml_routes), hooks_nvml_is_loaded};

static bool is_caught(const struct route *route) {
  return !route->only_profiled || profile_is_wanted();
}

/* Whose function a name would be. */
static const struct library *library_of(const char *name) {
  if (name != NULL && text_begins_with(name, cuda.prefix))
    return &cuda;
  if (name != NULL && text_begins_with(name, nvml.prefix))
    return &nvml;
  return NULL;
}

static const struct route *caught(const struct library *library, const char *name) {
  for (size_t i = 0; library != NULL && i < library->count; i++)
    if (text_equals(library->routes[i].name, name) && is_caught(&library->routes[i]))
      return &library->routes[i];
  return NULL;
}

bool routes_catch(const char *name) {
  const struct library *library = library_of(name);
  if (caught(library, name) == NULL)
    return false;
  if (library == &cuda)
    hooks_load_cuda();
  else
    hooks_load_nvml_if_there();
  return true;
}

/* Only a library that the program has loaded itself can have answered its lookup. */
void *routes_to(const char *name, void *address) {
  const struct library *library = address != NULL ? library_of(name) : NULL;
  if (library == NULL || !library->is_loaded())
    return address;
  for (size_t i = 0; i < library->count; i++)
    if (*library->routes[i].real == address && is_caught(&library->routes[i]))
      return library->routes[i].hook;
  return address;
}

void *routes_of(const char *name) {
  const struct library *library = library_of(name);
  const struct route *route = caught(library, name);
  return route != NULL && library->is_loaded() && !hooks_is_missing(*route->real) ? route->hook : NULL;
}
