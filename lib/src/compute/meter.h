/*
 * A device of a process whose GPU time is limited: the streams that it launches on, which of their work is outstanding,
 * and the buckets that pay for it. Where the driver lets us, the GPU's own scheduler holds the limit
 * (scheduler/governor.h); else launches are held (compute/gate.h). docs/dev/compute.md tells how it works.
 *
 * The driver and the clock are passed in; no CUDA header is needed here. No lock is held across a driver call.
 */
#pragma once

#include "compute/account.h"
#include "shared/device_state.h"
#include "tenants/tenants.h"

#include <stdatomic.h>
#include <stdbool.h>

struct meter_driver {
  int64_t (*now_ns)(void);
  void (*sleep_ns)(int64_t duration_ns);
  bool (*is_capturing)(void *stream); /* also when that cannot be asked: nothing else may be asked then */
  bool (*is_idle)(void *stream);
  bool (*is_here)(void *context); /* is it the calling thread's? Elsewhere a default stream's handle means another */
};

struct meter_stream {
  struct meter *meter;
  struct meter_stream *next;
  void *_Atomic context;
  void *_Atomic handle;           /* NULL: removed */
  _Atomic int32_t launcher;       /* the thread that launched last: it alone may call the driver with the handle */
  _Atomic int64_t outstanding_ns; /* compute/outstanding.c's: the last launch that is not known to be done; 0: none */
  _Atomic int64_t since_ns;       /* likewise: the first of those */
  _Atomic int64_t kernel_ns;      /* likewise: the last launch of a kernel while nothing could run */
  _Atomic uint32_t ahead, burst;  /* compute/gate.c's: launches since it was idle; and how many there may be */
};

/* Somebody looks on. Called by any thread; asks nothing of the driver. */
struct meter_observer {
  void (*waited)(const struct meter *meter, int64_t began_ns, int64_t ended_ns);
  void (*was_off)(const struct meter *meter, int64_t began_ns, int64_t ended_ns); /* the GPU, its work with it */
};

/* A token bucket: the tenant's, or that of a share within it. */
struct meter_bucket {
  struct device_state *state;
  _Atomic int64_t paid_zero_at_ns; /* by what this process has paid */
};

/* For how long there was work that was not known to be done. */
struct outstanding {
  _Atomic int32_t streams;  /* that have such work now */
  _Atomic int64_t sum_ns;   /* its time; while there is some, less the time at which that began, so below zero */
  _Atomic int64_t since_ns; /* when there was none last */
  _Atomic int64_t taken_ns; /* its time, as it was taken last */
  _Atomic int64_t off_ns;   /* since when none can run; 0: it can */
  _Atomic bool ran_while_off;
};

/* Of compute/gate.c, where launches are held. */
struct gate {
  int32_t claim; /* on the account */
  struct account account;
  _Atomic int64_t settled_ns; /* when that was done last; 0: not yet */
  _Atomic int64_t open_at_ns; /* then launches may go on; INT64_MAX: the device is paused */
};

struct meter {
  const struct meter_driver *driver;
  _Atomic bool is_governed;    /* the GPU's own scheduler holds the limit */
  _Atomic bool holds_launches; /* the driver has been found not to let it; neither: that is being found out */
  bool launches_block;         /* until their work is done */
  struct governor *governor;   /* while it is governed */
  struct meter_terms (*terms)(const void *owner);            /* as they are now */
  void (*note_limiter)(const void *owner, uint32_t limiter); /* VGPU_LIMITER_* */
  void (*note_work)(struct meter *meter);                    /* called where there is work again after there was none */
  const void *owner;
  const struct meter_observer *observer; /* NULL: nobody looks on */
  struct tenants *tenants;               /* NULL: nobody knows who else is on the GPU */
  struct outstanding outstanding;
  struct gate gate;
  int bucket_count;
  struct meter_bucket buckets[VGPU_MAX_LEVELS]; /* the tenant's first, the own share's last */
  int32_t lock;                                 /* a claim of who adds a stream */
  struct meter_stream *_Atomic streams;         /* none leaves the list */
  _Atomic uint32_t launches;                    /* of which nobody has been told */
};

/* A stream to meter, or NULL without memory. */
struct meter_stream *meter_add_stream(struct meter *meter, void *context, void *handle);

/* The stream is destroyed; its work goes on. */
void meter_remove_stream(struct meter_stream *stream);

/* The context is destroyed, with all that was launched there. */
void meter_remove_context(struct meter *meter, void *context);

/* May the calling thread ask for the stream? A capture may have reached it by an event. */
bool meter_may_touch(struct meter_stream *stream);
