/* Contexts, and which one is current in a thread. */
#pragma once

#include "driver.h"

struct stream;
struct block;

#define CONTEXT_LIMITS 3 /* stack, printf, malloc */

struct context {
  CUcontext handle;
  unsigned device;
  unsigned flags;
  uint64_t id;
  bool active;               /* a primary context keeps its handle while nobody retains it */
  unsigned retained;         /* primary contexts only */
  unsigned group;            /* group of channels (groups.h) */
  uint64_t half_rounds;      /* rounds of its queue that have been looked at */
  uint64_t blocking_tail_ns; /* when the last work of all blocking streams ends */
  uint64_t legacy_tail_ns;   /* when the last work of the legacy default stream ends */
  uint64_t gone_tail_ns;     /* when the last work of streams that were destroyed ends */
  struct stream *legacy;
  struct block *blocks;            /* for small allocations */
  uint64_t limits[CONTEXT_LIMITS]; /* set by cuCtxSetLimit */
};

/* The calling thread's context: CUDA_ERROR_INVALID_CONTEXT when it has none. */
CUresult context_current(struct context **context);

/* The context behind a handle; NULL means the current one. */
CUresult context_find(CUcontext handle, struct context **context);

/* driver_enter(), and context_current(). */
CUresult context_enter(struct context **context);

/* Makes a context the calling thread's, or no longer so if it is that. */
CUresult context_push(CUcontext handle);
void context_pop_if(CUcontext handle);

/* A new, inactive context with its handle. NULL when there is no memory. */
struct context *context_new(unsigned device, unsigned flags);
void context_delete(struct context *context);
