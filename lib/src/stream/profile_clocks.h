/* Places the GPU's clock, as the markers of a context read it, on that of the host. By one thread at a time. */
#pragma once

#include "hook/hooks.h"

#include <stdbool.h>
#include <stdint.h>

struct profile_clock {
  struct profile_clock *next;
  CUcontext context; /* NULL: destroyed */
  void *base;        /* a marker that is done; NULL: not placed yet */
  int64_t base_ns;   /* when it was */
};

/* The clock of a context, or NULL without memory. */
struct profile_clock *profile_clocks_of(CUcontext context);

/* Places a clock that has not been, by markers on a stream that may be idle. */
void profile_clocks_place(CUcontext context, CUstream idle);

/* When a marker was done, which is between those two: that keeps the clocks together. False where the driver does not
 * say. It is recycled, or becomes the base: the further that is, the less exact is what the driver says. */
bool profile_clocks_place_marker(struct profile_clock *clock, void **marker, int64_t earliest_ns, int64_t latest_ns,
                                 int64_t *at_ns);

/* The context is being destroyed: its markers must not be touched any more. */
void profile_clocks_forget_context(CUcontext destroyed);
