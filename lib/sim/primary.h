/* Primary contexts: one per device and process, counted. */
#pragma once

#include "contexts.h"

/* The primary context of a device, created without being active. NULL when there is no memory. */
struct context *context_primary(unsigned device);

/* driver_enter(), and the primary context of an ordinal's device. */
CUresult primary_enter(CUdevice ordinal, struct context **context);

/* Counts a reference more, the first of which activates the context, or one less. */
CUresult primary_retain(struct context *context);
CUresult primary_release(struct context *context);
