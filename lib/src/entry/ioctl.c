/*
 * The exported ioctl. By it libcuda tells the driver of each object that it makes and frees: those calls are looked at
 * once they have succeeded. All others go on as if we were not there.
 */
#include "base/libc_symbols.h"
#include "device/process.h"
#include "hook/hooks.h"
#include "scheduler/channels.h"

#include <dlfcn.h>
#include <errno.h>
#include <stdarg.h>
#include <sys/syscall.h>
#include <unistd.h>

typedef int ioctl_function(int file, unsigned long request, ...);
#ifdef __GLIBC__
typedef unsigned long ioctl_request;
#else
typedef int ioctl_request; /* musl's */
#endif

/* Threads may do this at the same time: they find the same. */
static ioctl_function *find(ioctl_function **known, void *handle) {
  ioctl_function *found = __atomic_load_n(known, __ATOMIC_RELAXED);
  if (found == NULL) {
    found = (ioctl_function *)libc_dlsym(handle, "ioctl");
    __atomic_store_n(known, found, __ATOMIC_RELAXED);
  }
  return found;
}

/* Calls what the program would have called without us. */
static int next(int file, unsigned long request, void *argument) {
  static ioctl_function *known;
  ioctl_function *found = find(&known, RTLD_NEXT);
  return found != NULL ? found(file, request, argument) : (int)syscall(SYS_ioctl, file, request, argument);
}

/* Calls the ioctl of libcuda and what it is linked with: the C library's, or a simulated driver's. */
static int drivers(int file, unsigned long request, void *argument) {
  static ioctl_function *known;
  void *cuda = hooks_cuda_handle();
  ioctl_function *found = cuda != NULL ? find(&known, cuda) : NULL;
  return found != NULL ? found(file, request, argument) : next(file, request, argument);
}

static COLD int look_at(int file, unsigned long request, void *argument) {
  __atomic_store_n(&rm_ioctl, drivers, __ATOMIC_RELAXED);
  int result = drivers(file, request, argument);
  if (result == 0)
    KEEPING_ERRNO((channels_note(file, request, argument), 0));
  return result;
}

HOOK int ioctl(int file, ioctl_request request, ...) {
  va_list more;
  va_start(more, request);
  void *argument = va_arg(more, void *);
  va_end(more);
  bool is_drivers = RM_REQUEST_TYPE(request) == RM_TYPE;
  if (__builtin_expect(!is_drivers || process_is_free(), 1))
    return next(file, (unsigned long)request, argument);
  return look_at(file, (unsigned long)request, argument);
}

PROCESS_IN_CHILD(channels_forget);
