/*
 * What a process owes its container, and the shares that this is a part of: the buckets of the meter, charged by the
 * GPU time that was had.
 */
#ifndef VGPU_SCHEDULER_ACCOUNT_H
#define VGPU_SCHEDULER_ACCOUNT_H

#include "compute/meter.h"

struct account {
  struct meter *meter;
  struct meter_terms terms; /* as they were read last */
  int64_t kept_ns;          /* what accrues in so long is kept besides a burst: it may not be used meanwhile */
  int slowest;              /* the bucket that has had no tokens for the longest time */
};

/* An entry of the account: what has happened until now_ns. */
struct account_entry {
  int64_t now_ns, used_ns; /* GPU time */
  int64_t held_ns;         /* for which work has waited */
  int64_t at_work_since_ns;
  uint32_t launches;
};

void account_enter(struct account *account, const struct account_entry *entry);

/* When all buckets have tokens; or, in the past, had. The terms hold as they are. */
int64_t account_open_at_ns(struct account *account, int64_t now_ns);

#endif
