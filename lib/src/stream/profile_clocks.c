#include "stream/profile_clocks.h"

#include "base/clock.h"
#include "base/compiler.h"
#include "device/process.h"
#include "stream/profile_markers.h"

#include <stdlib.h>

#define TRIES 5
#define WITHIN_NS 20000LL
#define BASE_NS 1000000000LL /* a float of milliseconds has steps of 60 ns then */

static struct profile_clock *clocks;

struct profile_clock *profile_clocks_of(CUcontext context) {
  struct profile_clock *clock = clocks, *unused = NULL;
  for (; clock != NULL && clock->context != context; clock = clock->next)
    if (clock->context == NULL)
      unused = clock;
  if (clock != NULL)
    return clock;
  clock = unused != NULL ? unused : calloc(1, sizeof *clock);
  if (clock == NULL)
    return NULL;
  if (unused == NULL) {
    clock->next = clocks;
    clocks = clock;
  }
  clock->context = context;
  return clock;
}

static void set_base(struct profile_clock *clock, void *marker, int64_t at_ns) {
  profile_markers_recycle(clock->base);
  clock->base = marker;
  clock->base_ns = at_ns;
}

/* A marker on an idle stream is done as soon as it has been recorded. To make the first one takes longer. */
COLD void profile_clocks_place(CUcontext context, CUstream idle) {
  struct profile_clock *clock = profile_clocks_of(context);
  for (int tries = 0; clock != NULL && clock->base == NULL && tries < TRIES; tries++) {
    int64_t before_ns = quick_clock_ns();
    void *marker = profile_markers_record(idle);
    bool is_done = marker != NULL && profile_markers_query(marker) == MARKER_DONE;
    int64_t after_ns = quick_clock_ns();
    if (is_done && after_ns - before_ns < WITHIN_NS)
      set_base(clock, marker, before_ns + (after_ns - before_ns) / 2);
    else
      profile_markers_recycle(marker);
  }
}

bool profile_clocks_place_marker(struct profile_clock *clock, void **marker, int64_t earliest_ns, int64_t latest_ns,
                                 int64_t *at_ns) {
  int64_t since_ns = 0;
  if (clock->base == NULL)
    clock->base_ns = earliest_ns;
  else if (!profile_markers_elapsed_ns(clock->base, *marker, &since_ns))
    return false;
  *at_ns = min(max(clock->base_ns + since_ns, earliest_ns), latest_ns);
  clock->base_ns = *at_ns - since_ns;
  if (clock->base == NULL || since_ns > BASE_NS)
    set_base(clock, *marker, *at_ns);
  else
    profile_markers_recycle(*marker);
  *marker = NULL;
  return true;
}

void profile_clocks_forget_context(CUcontext destroyed) {
  for (struct profile_clock *clock = clocks; clock != NULL; clock = clock->next)
    if (clock->context == destroyed) {
      set_base(clock, NULL, 0);
      clock->context = NULL;
    }
}

static void profile_clocks_forget(void) {
  clocks = NULL;
}
PROCESS_IN_CHILD(profile_clocks_forget);
