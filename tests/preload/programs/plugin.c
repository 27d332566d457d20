/*
 * A plugin that takes what it can get of the GPU. How it comes to the driver is compiled in:
 *
 *   (nothing)      it is linked with libcuda
 *   -DDLSYM=...    it opens libcuda, and this expression is the dlsym with which it looks up the driver's functions
 *   -DDLOPEN=...   this expression is the dlopen with which it opens the plugin OTHER, of which it does the bidding
 */
#define _GNU_SOURCE
#include "ok.h"

#include <dlfcn.h>

long held_mib(void);
double seconds_of(int launches);

#define LIBC dlopen("libc.so.6", RTLD_LAZY)
#define LIBDL dlopen("libdl.so.2", RTLD_LAZY)
typedef void *dlopen_function(const char *, int);
typedef void *dlsym_function(void *, const char *);
typedef void *dlvsym_function(void *, const char *, const char *);

#ifdef DLOPEN

static void *of_other(const char *name) {
  void *other = ((dlopen_function *)DLOPEN)(OTHER, RTLD_NOW | RTLD_DEEPBIND);
  return dlsym(other, name);
}

long held_mib(void) {
  return ((__typeof__(held_mib) *)of_other("held_mib"))();
}

double seconds_of(int launches) {
  return ((__typeof__(seconds_of) *)of_other("seconds_of"))(launches);
}

#else

#ifdef DLSYM
#define CUDA(f) ((__typeof__(f) *)((dlsym_function *)DLSYM)(dlopen("libcuda.so.1", RTLD_LAZY), #f))
#else
#define CUDA(f) f
#endif

static void begin(void) {
  CUcontext context;
  OK(CUDA(cuInit)(0));
  OK(CUDA(cuDevicePrimaryCtxRetain)(&context, 0));
  OK(CUDA(cuCtxSetCurrent)(context));
}

/* In allocations of 256 MiB, up to 7 GiB. */
long held_mib(void) {
  CUdeviceptr memory;
  long held = 0;
  begin();
  while (held < 7 << 10 && CUDA(cuMemAlloc_v2)(&memory, 256 << 20) == CUDA_SUCCESS)
    held += 256;
  return held;
}

/* Each takes 1 ms. */
double seconds_of(int launches) {
  CUmodule module;
  CUfunction kernel;
  begin();
  OK(CUDA(cuModuleLoadData)(&module, "image"));
  OK(CUDA(cuModuleGetFunction)(&kernel, module, "spin_1ms"));
  double begun_s = now_s();
  while (launches-- > 0)
    OK(CUDA(cuLaunchKernel)(kernel, 1, 1, 1, 1, 1, 1, 0, NULL, NULL, NULL));
  OK(CUDA(cuCtxSynchronize)());
  return now_s() - begun_s;
}

#endif
