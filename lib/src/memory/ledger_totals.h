/*
 * Totals over all processes of a share: the slots of the others in its usage file are read for them.
 */
#pragma once

#include "memory/ledger.h"

/* Bytes that the live processes hold on the device, overhead included; never more than UINT64_MAX. */
uint64_t ledger_used(const struct ledger *ledger, int device);

/* Is that more than so many bytes? Asks whether the others live only where all slots together show more. */
bool ledger_uses_more_than(const struct ledger *ledger, int device, uint64_t bytes);

/* Sums up as ledger_used does, without a system call: with what the others held when they were read last. */
uint64_t ledger_used_of_late(const struct ledger *ledger, int device);

/* The parts of the total. */
struct ledger_parts {
  uint64_t own_bytes, others_bytes; /* requested by this process and by the others */
  uint64_t overhead_bytes;          /* all processes': contexts, modules */
  uint64_t context_bytes;           /* contexts alone */
  uint64_t host_bytes;              /* all processes', beside the device */
};
struct ledger_parts ledger_parts(const struct ledger *ledger, int device);

/* Calls visit for every live process that holds something on the device and that this one can name by a PID: itself,
 * and those of its PID namespace. */
typedef void (*ledger_visitor)(void *argument, uint32_t pid, uint64_t held_bytes);
void ledger_visit(const struct ledger *ledger, int device, ledger_visitor visit, void *argument);

/* The bytes that other live processes of this PID namespace hold and do not show, by a witness who knows what the
 * process with a PID holds: 0 where it knows nothing. What all slots show is noted as what the others held last. */
typedef uint64_t (*ledger_witness)(const void *argument, uint32_t pid);
uint64_t ledger_uncounted(const struct ledger *ledger, int device, ledger_witness held_bytes, const void *argument);

/* Does a live process with this PID, in this PID namespace, share the ledger? */
bool ledger_has_process(const struct ledger *ledger, uint32_t pid);

/* The bytes that the others hold; UINT64_MAX when they cannot be read. To ask for each whether it lives costs system
 * calls, so that the dead are told apart only where it matters. */
enum ledger_count { LEDGER_ALL_SLOTS, LEDGER_LIVE_SLOTS };
uint64_t ledger_held_by_others(const struct ledger *ledger, int way, int device, enum ledger_count count);
