/*
 * The memory ledger: what the container holds on a device, over all of its processes.
 *
 * Every process counts for itself, and shows the others in its slot what counts of it. The total is the sum over live
 * slots, so a process that is killed between any two instructions takes its bytes with it. A reservation is shown first
 * and checked then, so that concurrent ones can never pass the limit together.
 *
 * A share may be a part of another one, with a ledger of its own: a reservation is shown and checked at every level,
 * and taken back at all where one has no room. Functions that look ask the level that they are given, by the number
 * that the device has at the first level; functions that count are given the first.
 *
 * To show and to look are system calls. They are made when more counts than is shown, and when what is shown lags by
 * two blocks: small allocations draw on what counts already. Above its own level a process may keep more than that, so
 * that what it releases and asks for again costs nothing there: a small part of the level's limit at the most.
 */
#pragma once

#include "abi.h"

#include <stdbool.h>

/* Counts what changes hands between this process and the driver while the driver is asked what the process holds. */
struct ledger_flow {
  uint64_t begun_bytes;   /* ever reserved, or counted without a reservation */
  uint64_t settled_bytes; /* reserved bytes that are no longer pending */
  uint64_t leaving_bytes; /* allocated, and given back to the driver, which has not answered */
  uint64_t raises;        /* number of times the overhead grew */
};

/* This process's knowledge of one usage file, by its own numbers of the devices. */
struct ledger_level {
  struct vgpu_device_usage shown[VGPU_MAX_DEVICES]; /* content of this process's slot */
  uint64_t granted_bytes[VGPU_MAX_DEVICES];         /* shown bytes that were found to be within the limit */
  uint64_t kept_bytes[VGPU_MAX_DEVICES];            /* may stay shown, and granted, when it is released */
  uint64_t others_bytes[VGPU_MAX_DEVICES];          /* last read */
  uint32_t slots_used;                              /* likewise */
  int32_t numbers[VGPU_MAX_DEVICES]; /* the devices' in that file; at the first level they are the same */
};

/* This process's holdings, in memory that nobody else can damage. */
struct ledger_own {
  int32_t claim;                   /* taken by the thread that changes or shows them */
  struct vgpu_process_usage usage; /* exactly, but for what is pending */
  uint64_t leaving_somewhere_bytes;
  uint64_t most_bytes[VGPU_MAX_DEVICES]; /* the device's memory, which no process exceeds; 0: not known */
  struct ledger_flow flows[VGPU_MAX_DEVICES];
  struct ledger_level levels[VGPU_MAX_LEVELS];
};

/* How struct vgpu_usage begins. */
struct usage_start {
  uint64_t magic;
  uint32_t abi_version;
  uint32_t slots_used;
};
_Static_assert(offsetof(struct usage_start, slots_used) == offsetof(struct vgpu_usage, slots_used), "layout");

/* The usage file; `at` is a place in struct vgpu_usage. Call reach() right before a group of reads or writes. False
 * when that cannot be read or written. */
struct ledger_slots {
  int (*reach)(void *context);
  bool (*read)(void *context, int way, void *to, size_t size, size_t at);
  bool (*write)(void *context, int way, const void *from, size_t size, size_t at);
  bool (*is_live)(void *context, int slot); /* wipes the slot if its owner has died */
};

/* A level, and those above: what a process holds counts in all of them. */
struct ledger {
  struct ledger_own *own; /* the same at all levels */
  const struct ledger_slots *slots;
  void *context;
  int own_slot;         /* shows the others what counts of `own`; -1 for none */
  int level;            /* 0: the process's own */
  struct ledger *above; /* the share around this one; NULL: none */
};

/* The most that the driver takes from the device for a request: whole blocks. Requests of up to 1 MiB share a block.
 * Measured on driver 580. A request too large to round comes back unchanged: the driver refuses it. */
#define LEDGER_BLOCK_BYTES (2ULL << 20)
#define LEDGER_SHARING_BYTES (1ULL << 20)
uint64_t ledger_driver_size(uint64_t requested_bytes);

/* The memory of this process; counted_bytes is its sum. */
struct vgpu_device_usage ledger_own_usage(const struct ledger *ledger, int device);

/* Counts bytes as pending unless that passes the limit of a level. The driver is asked next, and its answer goes to
 * ledger_settle. Returns what is counted then, at the most, and the least that a level has left; LEDGER_FULL and 0 when
 * the bytes do not fit. */
#define LEDGER_FULL UINT64_MAX
struct ledger_room {
  uint64_t used_bytes, left_bytes;
};
struct ledger_room ledger_reserve(const struct ledger *ledger, int device, uint64_t bytes,
                                  const uint64_t limits_bytes[]);

/* The driver has taken actual_bytes, or nothing, for what was reserved. */
void ledger_settle(const struct ledger *ledger, int device, uint64_t reserved_bytes, uint64_t actual_bytes);

/* Counts what the driver has already taken, limit or not. */
void ledger_add(const struct ledger *ledger, int device, uint64_t bytes);

/* Stops counting bytes that the driver has back. */
void ledger_release(const struct ledger *ledger, int device, uint64_t bytes);

/* Around a call that gives bytes back to the driver: they stay counted until they are released, but may be gone before.
 */
#define LEDGER_SOME_DEVICE (-1)
#define LEDGER_UNKNOWN_BYTES (1ULL << 50)
static inline uint64_t *ledger_leaving(const struct ledger *ledger, int device) {
  return device < 0 ? &ledger->own->leaving_somewhere_bytes : &ledger->own->flows[device].leaving_bytes;
}

static inline void ledger_begin_leaving(const struct ledger *ledger, int device, uint64_t bytes) {
  if (bytes > 0)
    __atomic_add_fetch(ledger_leaving(ledger, device), bytes, __ATOMIC_SEQ_CST);
}

static inline void ledger_end_leaving(const struct ledger *ledger, int device, uint64_t bytes) {
  if (bytes > 0)
    __atomic_sub_fetch(ledger_leaving(ledger, device), bytes, __ATOMIC_SEQ_CST);
}

/* Managed memory, which is counted like other memory, but may not be on the device yet. */
void ledger_add_managed(const struct ledger *ledger, int device, uint64_t bytes);
void ledger_release_managed(const struct ledger *ledger, int device, uint64_t bytes);

/* Memory of the host that serves in the place of the device's: counted beside what the device holds, unless both
 * together pass the limit of a level. */
bool ledger_reserve_host(const struct ledger *ledger, int device, uint64_t bytes,
                         const uint64_t virtual_limits_bytes[]);
void ledger_release_host(const struct ledger *ledger, int device, uint64_t bytes);

/* The contexts' part of the overhead. The overhead itself follows at the next correction. */
void ledger_add_context(const struct ledger *ledger, int device, uint64_t bytes);
void ledger_release_context(const struct ledger *ledger, int device, uint64_t bytes);

/* A snapshot of what is counted, taken before the driver is asked what this process holds. */
struct ledger_snapshot {
  uint64_t allocated_bytes, pending_bytes, begun_bytes, raises;
};
struct ledger_snapshot ledger_snapshot(const struct ledger *ledger, int device);

/* Notes which VGPU_LIMITER_* holds this process to its compute limit on the device; the value never decreases. */
void ledger_note_limiter(const struct ledger *ledger, int device, uint32_t limiter);

/* The least and the most that is not counted as allocated, if all managed memory is on the host. */
struct ledger_range {
  uint64_t least_bytes, most_bytes;
};

/* The driver has said, some time since the snapshot, that this process holds driver_bytes: what is not counted is
 * overhead. Memory that was allocated or freed meanwhile, and managed memory, may be in driver_bytes or not, which
 * leaves a range; the overhead stays as it was within that, but is no less than what contexts took. It is not lowered
 * when it has been raised since the snapshot. With LEDGER_MADE the caller has just had something made that is overhead:
 * it is counted in full, and in place of answered_bytes that were pending for it. */
enum ledger_cause { LEDGER_LOOKED, LEDGER_MADE };
struct ledger_range ledger_correct(const struct ledger *ledger, int device, const struct ledger_snapshot *before,
                                   uint64_t driver_bytes, enum ledger_cause cause, uint64_t answered_bytes);
