/* Does the environment ask for a profile? */
#ifndef VGPU_PROFILE_WANTED_H
#define VGPU_PROFILE_WANTED_H

#include "abi.h"

#include <stdbool.h>
#include <stdlib.h>

static inline bool profile_is_wanted(void) {
  const char *folder = getenv(VGPU_ENV_PROFILE);
  return folder != NULL && folder[0] != '\0';
}

#endif
