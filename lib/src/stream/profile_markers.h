/* Timing events on CUDA streams, kept for use again: by them the profile tells how long launches take. */
#pragma once

#include "hook/hooks.h"

#include <stdbool.h>
#include <stdint.h>

enum marker_state { MARKER_PENDING, MARKER_DONE, MARKER_LOST };

/* A marker recorded on the stream, or NULL. */
void *profile_markers_record(CUstream stream);

/* Gives a marker back, completed or not; NULL: none. */
void profile_markers_recycle(void *marker);

enum marker_state profile_markers_query(void *marker);

/* False where that cannot be told. */
bool profile_markers_elapsed_ns(void *start, void *end, int64_t *elapsed_ns);

/* The context is being destroyed: its markers must not be touched any more. */
void profile_markers_forget_context(CUcontext context);
