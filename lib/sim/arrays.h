/* CUDA arrays. */
#ifndef SIM_ARRAYS_H
#define SIM_ARRAYS_H

#include "contexts.h"

void arrays_delete_of(const struct context *context);

#endif
