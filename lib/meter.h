/*
 * Measures the GPU time of launches and holds them at the bucket: one meter for each limited device of a process.
 *
 * Launches on a stream form batches of about METER_BATCH_NS of the GPU's time. A timing event (a marker) is recorded at
 * a batch's end and, when the stream had run dry, at its start. When a marker has completed, the time between is
 * charged. Where the program itself waits for the stream, no marker is needed: the batch ends when the wait does. A
 * launch waits only where it opens a batch: inside one, the wait would be measured as work. At most METER_RUN_AHEAD_NS
 * of estimated work, and never fewer than two batches, are in flight.
 *
 * The driver and the clock are passed in; no CUDA header is needed here. No lock is held across a driver call: who
 * works on a stream or harvests has a claim on it, and whoever finds it claimed goes on without. To join an open batch
 * takes some nanoseconds, for which others wait.
 */
#ifndef VGPU_METER_H
#define VGPU_METER_H

#include "abi.h"
#include "turns.h"

#include <stdbool.h>

#define METER_BATCH_NS 1000000LL
#define METER_BATCH_LAUNCHES 512
#define METER_RUN_AHEAD_NS 4000000LL
/* Launches further apart than this are measured one by one: between them the stream has mostly run dry. A shorter gap
 * counts as work: nobody else could have used the GPU meanwhile, since they wait that long for a holder of the turn. */
#define METER_SPARSE_NS TURNS_GRACE_NS
/* Who has slept at the gate for so long is slower than usual for some time, which is another for each host
 * (tests/bench/drowsiness.py): what it takes is noted by how long it has been awake. */
#define METER_ASLEEP_NS 1000000LL
#define METER_AGES 4
/* Who has waited for tokens waits until it has those of this time: the GPU loses some microseconds each time that work
 * begins. Streams that run at the same time also end at different times, and with other tenants a turn is to be worth
 * its hand-over. Where the pace of the host is to be seen, it is to be awake for some of this time. */
#define METER_QUANTUM_WALL_NS 5000000LL
#define METER_OVERLAP_QUANTUM_WALL_NS 24000000LL
#define METER_COMPANY_QUANTUM_NS 8000000LL
#define METER_PACE_QUANTUM_NS 12000000LL
/* How long a launch waits for work in flight that makes no progress, or for eight times its estimate. Work that never
 * ends, such as a collective that waits for another GPU, must not hold up the launch that would end it: each time the
 * patience ends, twice as many batches as before may pass, up to 16. More would pile up where the GPU only mixes the
 * work with another's. */
#define METER_PATIENCE_NS 100000000LL
#define METER_DOUBLINGS 4

/* So many batches after a wait at the gate end with the first long kernel. The host has no lead then: it would show in
 * nothing but its cost how long the GPU was busy with it, and what is never alone in a batch has that from its first
 * launch. A shorter one is not worth its marker, which costs the GPU three microseconds. */
#define METER_SHORT_BATCHES 4
#define METER_LONG_NS 75000LL

#define METER_RING 64
#define METER_MAX_STREAMS 16384
#define METER_MAX_CONTEXTS 32
#define METER_COST_SET_BITS 11
#define METER_COST_WAYS 4
#define METER_INTERVALS 64

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
  void *context; /* NULL: destroyed */
  void *base;    /* a completed marker */
  int64_t base_gpu_ns;
  int64_t offset_ns;
};

/* Where a batch begins, but never before the end of the one before it: right there; at a marker, and not before its
 * first launch returned; or when that launch was let through, so that its way to the GPU counts. */
enum batch_start { START_AT_PREVIOUS_END, START_AT_MARKER, START_AT_GATE };

struct batch {
  /* What each launch changes. */
  int64_t estimate_ns;
  int64_t full_ns;                  /* it ends when its estimate is as near to this as it comes */
  int64_t open_until_ns;            /* launches may join it without asking at the gate */
  int64_t idle_ns;                  /* that the GPU waited within it, as far as the costs of its launches are known */
  int64_t own_idle_ns;              /* that it would have waited without a limit, too, before all but the first one */
  uint64_t last_work;               /* the key of its last launch */
  void *parts;                      /* the observer's; it frees them when the batch is measured, or dropped */
  uint32_t launches, most_launches; /* of which it ends with the last */
  bool last_is_unknown;
  bool mixed; /* launches of several keys */

  uint8_t host_age; /* how long it had been awake: see meter_pace.c */
  enum batch_start begins;
  int64_t own_gap_ns; /* like own_idle_ns, before the first one */
  void *start;
  void *end;
  int64_t start_recorded_ns; /* of the marker or the gate */
  int64_t launched_ns;       /* when its first launch returned, if that counts */
  int64_t last_launch_ns;
  int64_t end_recorded_ns; /* or when a wait began that it ends with */
  int64_t end_pending_ns;  /* when the end was last seen not to have come */
};

struct interval {
  int64_t start_ns;
  int64_t end_ns;
};

/* Of late. */
struct pace {
  int64_t ns;
  int64_t of; /* launches, or nanoseconds */
};

struct meter_stream {
  /* What each launch asks for. With the beginning of the batch these are two cache lines. */
  _Alignas(64) struct meter *meter;
  int32_t claim;         /* the thread at work on the batch: all below but the ring's tail is its own */
  int32_t launcher;      /* the thread that launched last: it alone may call the driver with the handle */
  bool open;             /* batch takes launches */
  bool waited;           /* the program has waited for the GPU since */
  bool one_by_one;       /* launches came far apart */
  bool is_free;          /* nothing holds its launches back */
  uint8_t short_batches; /* that are still to end with the first long kernel */
  uint8_t doubted_waits; /* before which the end is still to be marked */
  bool checks_next;      /* the next launch of checked_work is to be measured by itself */
  int64_t last_busy_ns;  /* its last launch, or the end of a wait for it */
  double scale;          /* measured / estimated, of mixed batches */
  double host_scale;     /* of the batch */
  int64_t lead_ns;       /* of the host over the GPU, without a limit */
  int64_t burst_ns;      /* of the GPU, since it last waited long for the host */
  int64_t gpu_until_ns;  /* when the GPU should be done with what was launched */
  const struct meter_observer *observer; /* the meter's */
  struct batch batch;

  void *context;                 /* NULL: destroyed */
  void *handle;                  /* NULL: removed */
  struct pace paces[METER_AGES]; /* what the host takes from one launch to the next, by how long it has been awake */
  int64_t seen_at_ns[METER_AGES];
  struct pace own_gaps;  /* of the GPU, to its work */
  int64_t usual_cost_ns; /* of a launch, in the last batch of known ones; read without the claim */
  int64_t had_ns;        /* was measured, or is taken to have been */
  int64_t previous_end_ns;
  uint64_t checked_work;         /* see meter_unseen.c */
  uint8_t checked_rows;          /* that are still to be */
  uint32_t row_launches;         /* of this row, before the batch */
  uint32_t checked_place;        /* in a row: the first is 1 */
  struct batch ring[METER_RING]; /* in flight: closed, not yet charged */
  uint32_t head, tail;
};

/* Who looks on: a profile. Called by any thread, one at a time for each batch; asks nothing of the driver. */
struct meter_observer {
  void (*joined)(struct batch *batch, int64_t expected_ns); /* what the thread is launching; 0: not known yet */
  void (*measured)(const struct meter_stream *stream, const struct batch *batch, int64_t start_ns, int64_t end_ns);
  void (*waited)(const struct meter *meter, int64_t began_ns, int64_t ended_ns);
};

/* What this process may have of the device, now. */
struct meter_terms {
  uint32_t percent; /* 1 to 100; VGPU_NO_SM_LIMIT: all */
  bool yields;      /* the percentage holds only while another tenant wants the GPU */
  bool takes_turns; /* where others are there to take them with */
  bool paused;      /* nothing is to begin */
};

struct meter_cost {
  uint64_t work;
  int64_t cost_ns;
};

struct meter {
  const struct meter_driver *driver;
  const struct meter_observer *observer; /* NULL: nobody looks on */
  struct vgpu_device_shared *device;
  uint32_t sm_percent;
  struct meter_terms (*terms)(const void *owner); /* NULL: sm_percent for ever */
  const void *owner;
  bool takes_turns;          /* with other processes on the GPU */
  bool launches_block;       /* until their work is done: each is a batch, and begins when it was let through */
  int64_t measures_since_ns; /* before, launches went by unmeasured; 0: always */
  struct turns turns;
  struct shared_file turns_file;
  int32_t lock; /* a claim that guards the list of streams */
  struct meter_stream *streams[METER_MAX_STREAMS];
  uint32_t stream_count;
  int32_t harvester; /* a claim: the thread that harvests alone uses the intervals and the timelines */
  struct interval intervals[METER_INTERVALS]; /* measured, not yet charged */
  uint32_t interval_count;
  int64_t in_flight_ns;
  int64_t reserved_ns; /* of in_flight_ns: launches of known cost, whose tokens are spoken for */
  uint32_t in_flight_batches;
  int64_t overrun_percent; /* by which a batch took longer than expected, at most: what was long ago counts less */
  int64_t measured_ns, charged_ns; /* of late: streams that run at the same time are charged once */
  int64_t measured_until_ns;
  struct vgpu_waiter waiters[VGPU_WAITERS];  /* streams whose threads wait for tokens */
  uint64_t name;                             /* among the processes that wait for tokens, 0 before: see gate.c */
  int64_t had_ns;                            /* was charged, or is taken to have been */
  int64_t busy_from_ns;                      /* with what is in flight: the rest has been harvested */
  int64_t mixed_until_ns, look_beside_at_ns; /* beside.c */
  bool was_late;
  int64_t last_busy_ns;      /* the latest of the streams, as of when a batch last ended */
  int64_t woke_at_ns;        /* when a thread last had slept at the gate: the others wait for the same tokens */
  int64_t looked_at_pace_ns; /* when one was last let go on for some milliseconds, to see its pace */
  int64_t uncounted_ns;      /* when a batch passed last that the ring of its stream had no place for */
  int64_t late_ns;           /* of work that has passed the gate since the slice was used up */
  int64_t took_turn_ns;      /* when, while none of the work of that turn has been measured; else 0 */
  int64_t progress_ns;       /* when a batch was harvested last, or the first one came into flight */
  struct timeline timelines[METER_MAX_CONTEXTS];
  uint32_t costs_replaced; /* by others for which there was no place */
  struct meter_cost costs[1 << METER_COST_SET_BITS][METER_COST_WAYS];
};

void meter_init(struct meter *meter, const struct meter_driver *driver, struct vgpu_device_shared *device,
                uint32_t sm_percent);

static inline struct meter_terms meter_terms(const struct meter *meter) {
  struct meter_terms fixed = {.percent = meter->sm_percent, .takes_turns = true};
  return meter->terms != NULL ? meter->terms(meter->owner) : fixed;
}

/* The limit now, 1 to 100. */
static inline uint32_t meter_percent(const struct meter *meter) {
  return meter_terms(meter).percent;
}

/* A stream to meter, or NULL when there are too many. */
struct meter_stream *meter_add_stream(struct meter *meter, void *context, void *handle);

/* The stream is destroyed: its open batch is closed, and no new one opens. */
void meter_remove_stream(struct meter_stream *stream);

/* Between these two no other thread harvests, so that a context may be destroyed; false when a thread that harvests
 * hangs in the driver. Once it is certain that the context is destroyed, all its markers are forgotten without being
 * touched: by a thread that harvests, when it comes back. */
bool meter_pause(struct meter *meter);
void meter_remove_context(struct meter *meter, void *context);
void meter_resume(struct meter *meter, bool paused);

/* From now on launches are measured that were not, since another tenant has come. */
void meter_begin_measuring(struct meter *meter);

/* Before a launch: may wait. `work` names what is launched (a function with its grid, a graph), so that its cost is
 * learned. True when the caller is to call meter_launched after the launch. */
bool meter_launch(struct meter_stream *stream, uint64_t work, int64_t now_ns);
void meter_launched(struct meter_stream *stream);

/* After launches that the meter was not asked about, the last one at last_ns or, at the latest, now: more of what was
 * launched there last, where the gate is open. */
void meter_launched_more(struct meter_stream *stream, uint64_t work, uint32_t launches, int64_t last_ns,
                         int64_t now_ns);

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
void meter_before_wait_all(struct meter *meter);
/* For all that its context had launched, or for some of it. They may be busy, other contexts' even then. */
enum meter_scope { METER_FOR_ALL, METER_FOR_SOME };
void meter_after_wait_all(struct meter *meter, enum meter_scope scope, int64_t began_ns, int64_t returned_ns);

/* The percentage of the time that passes in which our work may be on the GPU: more than the limit beside work that does
 * not end, since then the GPU gives each of its tenants a part of the time. */
uint32_t meter_percent_of_time(struct meter *meter);

/* In-flight work as GPU time: less than the sum over the streams when they run at the same time. */
int64_t meter_in_flight_ns(const struct meter *meter);
int64_t meter_reserved_ns(const struct meter *meter);
bool meter_streams_overlap(const struct meter *meter);

/* Charges what has completed. */
void meter_harvest(struct meter *meter);

#endif
