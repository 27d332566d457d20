/*
 * What a process owes its container, and the shares that this is a part of: the buckets of the meter, charged by the
 * GPU time that was had.
 */
#pragma once

#include "abi.h"

#include <stdbool.h>

/* This process's part of the device. */
struct meter_terms {
  uint32_t percents[VGPU_MAX_LEVELS]; /* of each bucket: 1 to 100; VGPU_NO_SM_LIMIT: all */
  bool yields;                        /* the tenant's percentage is a weight beside others: it owes nothing by it */
  bool paused;                        /* nothing is to run */
};

struct account {
  struct meter *meter;
  struct meter_terms terms; /* as they were read last */
  int64_t kept_ns; /* what accrues in so long is kept besides a burst: a kernel may take more than a period has */
  int slowest;     /* the bucket that has tokens again last */
};

/* An entry of the account: what has happened until now_ns. */
struct account_entry {
  int64_t now_ns, used_ns; /* GPU time; below zero: given back */
  int64_t held_ns;         /* for which work has waited */
  int64_t since_ns;        /* 0, or when that began: the container's processes may have had it at the same time */
  uint32_t launches;
};

void account_enter(struct account *account, const struct account_entry *entry);

/* When all buckets have tokens; or, in the past, had; 0: nothing is limited. The terms hold as they are. */
int64_t account_open_at_ns(struct account *account, int64_t now_ns);
