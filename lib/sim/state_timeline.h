/* The layout of what the processes share of time on the devices. No lock guards it: see who writes what. */
#pragma once

#include <stdatomic.h>

#include "config.h"

/* A channel group. Its row belongs to the process that claimed it, and that one writes it; slices may be set by
 * whoever holds the process's descriptor. The first half are groups of the compute engine, which have queues, the
 * second those of a copy engine, whose copies are in the queue of their context. */
#define STATE_MAX_GROUPS 2048
#define STATE_MAX_QUEUES (STATE_MAX_GROUPS / 2)
#define STATE_GROUP_CHANNELS 8

struct state_group {
  _Atomic uint64_t owner;    /* 0: the row is free */
  _Atomic uint64_t leader;   /* the owner of the MPS server whose channels all these are; 0: none */
  _Atomic uint64_t queued;   /* pieces that were ever put in: they go on with the row's next owner */
  _Atomic uint64_t passed;   /* at least so many have ended; it only grows, and anybody may say so */
  _Atomic uint64_t slice_ns; /* how long a device runs it at a time */
  _Atomic uint32_t parent, handle, channels[STATE_GROUP_CHANNELS]; /* 0: not allocated */
  _Atomic uint32_t device_row;
  _Atomic uint32_t copies_of; /* for a copy engine's group, the row of the context's group, plus one; 0: none */
  _Atomic uint32_t spinning;  /* kernels that wait for one that is not launched yet */
};

/* A piece of a group's work, written by the owner before it is put into the queue. Two words change: each is pending
 * until the piece has ended, and then the time, which anybody may write who finds it in a true schedule. */
#define STATE_QUEUE 4096           /* pieces of a group that are remembered */
#define STATE_PENDING (1ULL << 63) /* and the number of the piece */

struct state_piece {
  _Atomic uint64_t ended;  /* when it and all before it had */
  _Atomic uint64_t copied; /* when a copy had, while its group was off */
  uint64_t duration_ns;
  uint64_t until_ns; /* the group's queued_ns with it */
  uint64_t after;    /* begins no earlier than that time or piece (pieces.h), and after_ns later */
  uint64_t after_ns;
  uint64_t is_copy;
};

/* A group that has work, has had some in the last second, or is off. */
#define STATE_BUCKET_NS (NS_PER_S / 40)
#define STATE_BUCKETS 52 /* for the last second, and for the longest sample before that */

struct schedule_group {
  uint64_t owner;
  uint32_t row;
  uint16_t device_row;
  uint64_t off, copies_off; /* how often each channel is, a byte for each: of the group, and of its copy engine's */
  uint64_t queued, passed;
  uint64_t queued_ns, done_ns;    /* the work of all that were put in, and how much of it is done */
  uint64_t left_ns;               /* for the first piece that has not ended */
  uint64_t copied;                /* all copies up to that piece have ended */
  uint64_t copying, copy_left_ns; /* a copy behind the first piece that has begun while the group was off */
  uint64_t bucket;                /* the number of the last 125 ms in which it worked */
  uint32_t busy_ns[STATE_BUCKETS];
};

/* How a device is shared among groups. */
struct schedule_engine {
  uint64_t current; /* the row of the group that it runs or has run last, plus one; 0: none */
  uint64_t slice_left_ns, switch_left_ns;
  uint64_t loaded;  /* likewise, of the group whose context is on the device, also with nothing to do */
  uint64_t records; /* number of such changes, ever */
};

/* A record of a context switch: its time, the row of the group, and whether it begins. Of two records of a device the
 * greater word is the later one. */
#define STATE_RECORDS 4096 /* remembered ones of a device */
#define STATE_RECORD_ROW_BITS 10
#define STATE_RECORD_BITS (STATE_RECORD_ROW_BITS + 1)
_Static_assert(1 << STATE_RECORD_ROW_BITS >= STATE_MAX_QUEUES, "room for a row");

/* A time that a piece has ended at, or a context switch, found on the way to this schedule. */
#define STATE_EFFECTS 256
enum schedule_effect_kind { EFFECT_ENDED, EFFECT_COPIED, EFFECT_BEGUN, EFFECT_LEFT };

struct schedule_effect {
  uint16_t kind, device_row; /* the device of a record */
  uint32_t row;
  uint64_t number, time_ns; /* the number of the piece, or of the record */
};

/* All that is simulated has got to now_ns. One schedule of all is the true one (shared_schedule.h), and is not written
 * while it is. An all-zero one is valid. */
struct schedule {
  uint64_t now_ns;
  uint32_t group_count, effect_count;
  uint32_t first[SIM_MAX_DEVICES + 1]; /* first group of each device: they are sorted by device and row */
  struct schedule_engine engines[SIM_MAX_DEVICES];
  struct schedule_effect effects[STATE_EFFECTS];
  struct schedule_group groups[STATE_MAX_QUEUES];
};
