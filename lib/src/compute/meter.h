/*
 * Measures the GPU time of launches and holds them at the gate: one meter for each limited device of a process.
 * docs/dev/compute.md tells how it works.
 *
 * The driver and the clock are passed in; no CUDA header is needed here. No lock is held across a driver call: a thread
 * that works on a stream or harvests has a claim on it, and one that finds it claimed goes on without. To join an open
 * batch takes some nanoseconds, for which others wait.
 */
#ifndef VGPU_COMPUTE_METER_H
#define VGPU_COMPUTE_METER_H

#include "compute/spans.h"
#include "shared/device_state.h"
#include "turns/turns.h"

#include <stdatomic.h>
#include <stdbool.h>

/* A marker costs the GPU three microseconds, and a batch is what passes the gate at once. */
#define METER_BATCH_NS 1000000LL
#define METER_BATCH_LAUNCHES 512
/* A longer pause between two launches ends the batch: the stream has mostly run dry in it. Other tenants wait that long
 * for a holder of the turn. */
#define METER_SPARSE_NS TURNS_GRACE_NS
/* A thread may be told by so much late that the GPU is done: half of it is what one that has slept takes to wake up. */
#define METER_LATE_NS 100000LL

#define METER_RING 32
#define METER_MAX_STREAMS 16384
#define METER_MAX_CONTEXTS 32
#define METER_COST_SET_BITS 11
#define METER_COST_WAYS 4

enum meter_state { METER_PENDING, METER_DONE, METER_LOST };

struct meter_driver {
  int64_t (*now_ns)(void);
  void (*sleep_ns)(int64_t duration_ns);
  void *(*record)(void *stream); /* a marker recorded on the stream, or NULL */
  void (*recycle)(void *marker); /* completed or not */
  enum meter_state (*query)(void *marker);
  bool (*elapsed_ns)(void *start, void *end, int64_t *elapsed_ns);
  bool (*is_capturing)(void *stream); /* also when that cannot be asked: nothing may be recorded then */
  bool (*is_idle)(void *stream);
  bool (*is_here)(void *context); /* is it the calling thread's? Elsewhere a default stream's handle means another */
};

/* Places the GPU clock of one context on the wall clock. */
struct timeline {
  void *_Atomic context; /* NULL: destroyed */
  void *base;            /* a completed marker, or NULL */
  int64_t base_ns;       /* when that was */
  int64_t early_ns;      /* or later by so much at the most */
};

struct batch {
  /* Changed by each launch. */
  int64_t estimate_ns;    /* what its launches usually take */
  int64_t open_until_ns;  /* launches may join it without asking at the gate */
  int64_t last_launch_ns; /* before, the GPU may have waited for the host */
  uint64_t work;          /* the key of its last launch */
  void *parts;            /* the observer's; it frees them when the batch is measured, or dropped */
  uint32_t launches, most_launches;
  bool is_mixed;   /* launches of several keys */
  bool is_unknown; /* one launch, whose cost is not known */

  bool in_company;   /* with other tenants, for which the GPU was not free meanwhile */
  int64_t began_ns;  /* when its first launch returned */
  void *start;       /* a marker before its first launch, or NULL: the GPU's clock is set by it */
  int64_t start_ns;  /* when it had been recorded */
  bool started_idle; /* it was done at once */
  void *end;         /* a marker; or NULL where end_ns is known */
  int64_t end_ns;    /* the GPU was done by then; or when the marker was recorded, or last seen pending */
  int64_t late_ns;   /* by how much earlier it may have been done; INT64_MAX: nobody knows */
  int64_t paid_ns;
};

struct meter_stream {
  /* Read by each launch. With the beginning of the batch these are two cache lines. */
  _Alignas(64) struct meter *meter;
  int32_t claim;            /* the thread at work on the batch: all below but the ring's tail is its own */
  _Atomic int32_t launcher; /* the thread that launched last: it alone may call the driver with the handle */
  _Atomic bool open;        /* batch takes launches */
  _Atomic bool is_free;     /* nothing holds its launches back */
  _Atomic bool has_clock;   /* its context's timeline is true */
  _Atomic bool is_behind;   /* launches begin late, or seem to: behind a copy, or a function of the host */
  uint8_t batches;          /* one of many is measured alone: see compute/meter.c */
  const struct meter_observer *observer; /* the meter's */
  struct batch batch;

  void *_Atomic context;          /* NULL: destroyed */
  void *_Atomic handle;           /* NULL: removed */
  _Atomic int64_t outstanding_ns; /* compute/outstanding.c's: the last launch that is not known to be done; 0: none */
  _Atomic uint32_t governed_launches; /* likewise: of which nobody has been told */
  int64_t previous_end_ns;            /* what has been harvested ended then: of the thread that harvests */
  struct batch ring[METER_RING];      /* in flight: closed, not yet settled */
  _Atomic uint32_t head, tail;
  _Atomic int64_t had_ns; /* of the GPU, as launches usually take: by the thread that launched last */
  _Atomic int64_t waits_since_ns, waits_until_ns; /* for tokens: before the latter it looks again, or waits no more */
};

/* Somebody looks on: at batches as well, or at waits alone (`joined` and `measured` are NULL). Called by any thread,
 * one at a time for each batch; asks nothing of the driver. */
struct meter_observer {
  void (*joined)(struct batch *batch, int64_t expected_ns); /* what the thread is launching; 0: not known yet */
  void (*measured)(const struct meter_stream *stream, const struct batch *batch, int64_t start_ns, int64_t end_ns);
  void (*waited)(const struct meter *meter, int64_t began_ns, int64_t ended_ns);
  void (*was_off)(const struct meter *meter, int64_t began_ns, int64_t ended_ns); /* the GPU, its work with it */
};

/* A token bucket: the tenant's, or that of a share within it. */
struct meter_bucket {
  struct meter *meter;
  struct device_state *state;
  struct device_state *const *others;       /* of the devices of the share, this one among them; NULL ends the list */
  _Atomic uint32_t percent;                 /* as the terms have it */
  _Atomic int64_t paid_zero_at_ns;          /* by what this process has paid */
  _Atomic int64_t zero_at_ns, refreshed_ns; /* by what all had paid, and when that was so */
  _Atomic int64_t others_zero_at_ns, others_refreshed_ns; /* the latest of the others, and when that was so */
  _Atomic uint64_t busy_ns;                               /* GPU time of all, as it was seen last */
  _Atomic int64_t ahead_ns; /* by how much this process has had more of it than falls to one */
};

/* This process's part of the device. */
struct meter_terms {
  uint32_t percents[VGPU_MAX_LEVELS]; /* of each bucket: 1 to 100; VGPU_NO_SM_LIMIT: all */
  bool yields;                        /* the tenant's percentage holds only while another tenant wants the GPU */
  bool is_apart;                      /* from the container's other GPUs, which need not keep in step with this one */
  bool takes_turns;                   /* where others are there to take them with */
  bool paused;                        /* nothing is to begin */
};

struct meter_cost {
  _Atomic uint64_t work;
  _Atomic int64_t cost_ns;
  _Atomic uint32_t seen; /* how often that has been learned from */
};

/* Not yet told to the container: by the thread that harvests. */
struct meter_bill {
  int64_t now_ns, pay_ns;
  int64_t busy_ns, busy_until_ns; /* GPU time of ours */
  uint32_t launches;
};

/* The gate's, for work in flight that makes no progress: it may be waiting for a launch that is held. */
struct meter_valve {
  _Atomic int64_t held_since_ns; /* the first launch that waited without progress; 0: none did */
  _Atomic int64_t patience_ns;
  _Atomic int64_t released_ns; /* since then, when a launch that had been held for long went on; or 0 */
  _Atomic uint32_t passed;     /* launches since then */
};

/* The others on the GPU and in the container, as the gate saw them last. */
struct meter_contention {
  _Atomic bool is_free;         /* nobody else wants the GPU */
  _Atomic int siblings;         /* other processes of the container, with which it has the tokens in common */
  _Atomic int64_t others_at_ns; /* when the container launched last on another of its GPUs */
  _Atomic bool was_late;
  _Atomic int64_t turn_wait_ns;   /* the longest wait for the turn while others are there */
  _Atomic int64_t mixed_until_ns; /* the GPU mixes our work with another's */
  _Atomic int64_t check_at_ns;
};

/* For how long there was work that was not known to be done. */
struct outstanding {
  _Atomic int32_t streams; /* that have such work now */
  _Atomic int64_t sum_ns;  /* its time; while there is some, less the time at which that began, so below zero */
};

struct meter {
  const struct meter_driver *driver;
  _Atomic bool is_governed; /* the GPU's own scheduler holds the limit (scheduler/governor.c): no launch is held */
  void (*note_work)(void);  /* called where there is work again after there was none */
  struct outstanding outstanding;               /* while it is governed */
  const struct meter_observer *observer;        /* NULL: nobody looks on */
  struct meter_bucket buckets[VGPU_MAX_LEVELS]; /* the tenant's first, the own share's last */
  int bucket_count;
  struct meter_terms (*terms)(const void *owner);
  const void *owner;
  bool takes_turns;    /* with other processes on the GPU */
  bool launches_block; /* until their work is done */
  struct turns turns;
  struct meter *_Atomic *others; /* of the process, this one among them; NULL ends the list */
  int32_t lock;                  /* a claim that guards the list of streams */
  struct meter_stream *streams[METER_MAX_STREAMS];
  _Atomic uint32_t stream_count;

  int32_t harvester; /* a claim: the thread that harvests alone uses the next ones */
  struct meter_bill bill;
  int64_t told_ns;
  struct spans spans;
  struct timeline timelines[METER_MAX_CONTEXTS];

  _Atomic int64_t to_pay_ns;
  _Atomic int64_t in_flight_ns; /* as expected */
  _Atomic uint32_t in_flight_batches;
  _Atomic int64_t most_had_ns;    /* by a thread */
  _Atomic int64_t waits_until_ns; /* the last one of all streams */
  _Atomic int64_t progress_ns;    /* when a batch was settled last, or the first one came into flight */
  struct meter_valve valve;
  struct meter_contention contention;

  uint32_t costs_replaced; /* by others for which there was no place */
  struct meter_cost costs[1 << METER_COST_SET_BITS][METER_COST_WAYS];
};

void meter_init(struct meter *meter, const struct meter_driver *driver, struct meter_terms (*terms)(const void *owner),
                const void *owner);

/* Adds a bucket: the tenant's first, then those of shares within it. Call before the first launch. */
void meter_add_bucket(struct meter *meter, struct device_state *state, struct device_state *const *others);

/* Reads the terms as they are now: from here on the buckets go by them. */
struct meter_terms meter_terms(struct meter *meter);

/* A stream to meter, or NULL when there are too many. */
struct meter_stream *meter_add_stream(struct meter *meter, void *context, void *handle);

/* The stream is destroyed: its open batch is closed, and no new one opens. */
void meter_remove_stream(struct meter_stream *stream);

/* Keeps other threads from harvesting until meter_resume, so that a context may be destroyed. False when a thread that
 * harvests hangs in the driver. */
bool meter_pause(struct meter *meter);

/* Call in between once the context is certainly destroyed: its markers are not touched any more, and the next harvest
 * forgets all that is in flight there. */
void meter_remove_context(struct meter *meter, void *context);

/* `paused` is what meter_pause returned. */
void meter_resume(struct meter *meter, bool paused);

/* Before a launch: may wait. `work` names what is launched (a function with its grid, a graph), so that its cost is
 * learned. True when the caller is to call meter_launched after the launch. */
bool meter_launch(struct meter_stream *stream, uint64_t work, int64_t now_ns);
void meter_launched(struct meter_stream *stream);

/* Ends the open batches of streams that the calling thread launched on last: nothing is to join them any more. */
void meter_close_all(struct meter *meter);

/* Ends all open batches. Another thread may be capturing its stream, which must not be asked then: its batch is taken
 * to last as long as usual. */
void meter_end_all(struct meter *meter);

/* Around a wait of the program for the stream, which returned at that time. Afterwards the stream is idle, or that is
 * asked. */
enum meter_wait { METER_STREAM_IS_IDLE, METER_STREAM_MAY_BE_BUSY };
void meter_before_wait(struct meter_stream *stream);
void meter_after_wait(struct meter_stream *stream, enum meter_wait wait, int64_t returned_ns);

/* Call before a wait for a whole context, or for something on any of its streams. */
void meter_before_wait_all(struct meter *meter);

/* Call after it: the streams may still be busy. */
void meter_after_wait_all(struct meter *meter, int64_t returned_ns);

/* Call after asking whether work is done, where it is. Before the question, call meter_before_wait_all. */
void meter_after_poll(struct meter *meter);

/* Settles what has completed, and tells the tenant, and each share within it, what has been paid. */
void meter_harvest(struct meter *meter);

#endif
