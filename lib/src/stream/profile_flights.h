/*
 * Groups of launches that are in flight, with markers around them: those that are done are placed on the clock of the
 * host, in the order in which they ended, and told to the profile. By one thread at a time.
 */
#pragma once

#include "hook/hooks.h"
#include "profile/groups.h"
#include "profile/overlaps.h"
#include "stream/meters.h"
#include "stream/profile_markers.h"

struct profile_stream {
  int32_t claim;         /* the thread at work on the open group */
  int32_t launcher;      /* the thread that launched last: with the claim */
  bool is_open;          /* has it an open group? */
  bool has_strangers;    /* launches that found the claim taken */
  bool has_clock;        /* its context's has been placed, if that could be */
  bool has_ended;        /* used again once it has nothing in flight */
  uint8_t device;        /* in the file */
  uint32_t number;       /* among streams that have work on the device, no other has it */
  CUstream handle;       /* NULL: destroyed */
  CUcontext context;     /* NULL: destroyed */
  int64_t opened_ns;     /* the open group: before the marker was recorded */
  void *start;           /* the marker before it, or NULL where that could not be recorded */
  uint32_t groups;       /* open, and in flight */
  int64_t told_until_ns; /* end of its work that is in the profile already */
  struct flight *first, *last;
  struct profile_stream *next;
  struct profile_group open;
};

/* A new stream, or NULL without memory. */
struct profile_stream *profile_flights_stream(CUstream handle, CUcontext context, uint32_t number);

/* Its handle loses its meaning. */
void profile_flights_end_stream(struct profile_stream *stream, CUstream handle);

/* Have other streams of the device work, as far as is known? */
bool profile_flights_compete(const struct profile_stream *stream);

/* Opens a group behind a marker, unless the stream is being captured; and closes it, with a marker where one may be
 * recorded. The caller holds the claim, and may use the stream. */
bool profile_flights_open(struct profile_stream *stream);
void profile_flights_close(struct profile_stream *stream, bool marks);

/* In that time nothing ran on the device: what was in the middle of a kernel has none of it. */
void profile_flights_leave_out(uint8_t device, struct overlap time);

/* Tells the profile what is done; at the end of the process, all. */
enum flights_wanted { FLIGHTS_DONE, FLIGHTS_ALL };
void profile_flights_harvest(enum flights_wanted wanted);
void profile_flights_harvest_now_and_then(void);

/* Around a call that may destroy a context, whose markers are not touched any more then. */
bool profile_flights_pause(void);
void profile_flights_resume(bool paused, CUcontext destroyed);
