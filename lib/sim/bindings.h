/* Tiles of sparse arrays and multicast objects, which hold physical memory as handles and mappings do. */
#ifndef SIM_BINDINGS_H
#define SIM_BINDINGS_H

#include "cuda_api.h"
#include "handles.h"

struct binding;

/* Lets go of all. */
void bindings_end(struct binding **bindings);

/* The tiles of a sparse array; NULL when it is none. arrays.c has it. */
struct binding **array_tiles(enum handle_kind kind, const void *handle);

/* For cuMemRelease; false when it is no multicast object. */
bool multicast_release(CUmemGenericAllocationHandle handle);

#endif
