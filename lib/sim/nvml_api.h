/* nvml.h with the old versions of its prototypes visible, and what the simulated NVML's files share. */
#pragma once

/* Protected as in cuda_api.h. */
#define NVML_NO_UNVERSIONED_FUNC_DEFS
#pragma GCC visibility push(protected)
#include <nvml.h>
#pragma GCC visibility pop

#include "config.h"

/* NVML_SUCCESS once the library is initialised. */
nvmlReturn_t nvml_ready(void);
