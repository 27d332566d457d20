/* For test programs: the current context, a kernel by its name, and a launch of it. */
#pragma once

#include "ok.h"

static inline CUcontext enter(int gpu) {
  CUcontext context;
  OK(cuDevicePrimaryCtxRetain(&context, gpu));
  OK(cuCtxSetCurrent(context));
  return context;
}

static CUfunction kernel_of(const char *name) {
  CUmodule module;
  CUfunction kernel;
  OK(cuModuleLoadData(&module, "image"));
  OK(cuModuleGetFunction(&kernel, module, name));
  return kernel;
}

static inline void launch(CUfunction kernel, CUstream stream) {
  OK(cuLaunchKernel(kernel, 1, 1, 1, 1, 1, 1, 0, stream, NULL, NULL));
}
