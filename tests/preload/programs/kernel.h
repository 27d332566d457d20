/* For test programs: a kernel by its name, and a launch of it. */
#ifndef KERNEL_H
#define KERNEL_H

#include "ok.h"

static CUfunction kernel_of(const char *name) {
  CUmodule module;
  CUfunction kernel;
  OK(cuModuleLoadData(&module, "image"));
  OK(cuModuleGetFunction(&kernel, module, name));
  return kernel;
}

static void launch(CUfunction kernel, CUstream stream) {
  OK(cuLaunchKernel(kernel, 1, 1, 1, 1, 1, 1, 0, stream, NULL, NULL));
}

#endif
