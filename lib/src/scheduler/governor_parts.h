/* Shared by the files of the governor: scheduler/governor.c (its thread), scheduler/settle.c, scheduler/switch.c. */
#pragma once

#include "compute/account.h"
#include "compute/meter_parts.h"
#include "scheduler/governor.h"
#include "scheduler/records.h"
#include "tenants/tenants.h"

/* Work begins again at its multiples by the host's clock, in all processes at once. */
#define GOVERNOR_PERIOD_NS 40000000LL
#define GOVERNOR_SHORTEST_TICK_NS 1000000LL /* to look takes a tenth of a millisecond of the GPU's firmware */
#define GOVERNOR_LONGEST_TICK_NS 10000000LL /* a pause, and another limit, hold after so long */
#define GOVERNOR_LEAST_SLICE_US 4000        /* a switch between contexts costs 0.15 ms */
#define GOVERNOR_DEFAULT_SLICE_US 2048      /* the driver's */
#define GOVERNOR_EXPECTED_CALL_NS 450000LL  /* with nobody beside */

struct governor {
  struct meter *meter;
  const char *uuid;
  bool (*is_suspended)(void);
  struct account account;
  struct channels gpu;
  struct records records;
  struct samples samples;
  uint32_t switched, sliced; /* the objects' generation when that was done last */
  struct tenants_view others;
  uint64_t slice_us;
  int64_t sliced_ns;
  bool is_off, is_at_work;
  bool may_be_off; /* in part: to take it off was refused */
  int broken;
  int64_t off_ns, noted_off_ns;       /* since when it is off; and until when that has been booked */
  int64_t settled_ns;                 /* when that was done last */
  int64_t had_gpu_ns;                 /* when a record last had us there */
  int64_t on_ns, worked_ns;           /* what has not been charged of what the records had, and of the time with work */
  int64_t records_at_ns;              /* when to ask again for records that could not be had */
  int64_t paced_at_ns, paced_open_ns; /* when the buckets had tokens again, as it was then */
  int64_t ask_at_ns, ask_after_ns;    /* whether anything is left of it */
  int64_t period_ns, calls_ns;
  int64_t refused_ns;       /* since when switches are; 0: they are not */
  int64_t unseen_ns;        /* for which it has had work since the records last knew of any */
  _Atomic int32_t sleeps;   /* its thread, until there is work */
  _Atomic int32_t is_asked; /* for a round: the process ends */
};

/* Charges all that the GPU has done for us since the last time. */
void governor_settle(struct governor *governor);

/* Likewise as far as it is known, where nothing has taken us off the GPU but others. */
void governor_settle_and_compare(struct governor *governor);

/* When the last period began. */
int64_t governor_period_began_ns(const struct governor *governor, int64_t now_ns);

/* Looks who else is at work on the GPU, and has each group have it for as long as falls to it beside them. */
void governor_set_slices(struct governor *governor, int64_t now_ns);

/* Takes the channels off the GPU, or puts them back. */
void governor_turn(struct governor *governor, bool off);

/* Likewise, as the account has it, and returns for how long nothing is to be done. */
int64_t governor_switch_as_due(struct governor *governor);
