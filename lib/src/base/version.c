#include "abi.h"
#include "base/compiler.h"

#define TEXT(x) #x
#define EXPANDED_TEXT(x) TEXT(x)

/* Read from the built file by `vgpurun`, without loading it: nothing here refers to it. */
KEPT static const char marker[] =
    VGPU_MARKER_PREFIX VGPU_VERSION " abi=" EXPANDED_TEXT(VGPU_ABI_VERSION) " levels=" EXPANDED_TEXT(VGPU_MAX_LEVELS);
