/* CUDA arrays. */
#pragma once

#include "contexts.h"

struct binding;

/* The tiles of a sparse array; NULL when it is none. */
struct binding **array_tiles(enum handle_kind kind, const void *handle);

void arrays_delete_of(const struct context *context);
