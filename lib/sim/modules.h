/* Modules, libraries and their kernels. No image is read: any name is a kernel, and its name or the configuration
 * says how long it takes. */
#pragma once

#include "contexts.h"

struct kernel {
  void *handle; /* a CUfunction of a module, or a CUkernel of a library */
  const void *owner;
  const struct context *context; /* NULL: of a library, good in any context */
  uint64_t duration_ns;
  char *name;
};

/* The kernel behind a CUfunction, or behind a CUkernel passed as one; NULL when it is neither. */
const struct kernel *kernel_find(CUfunction function);

void modules_delete_of(const struct context *context);
