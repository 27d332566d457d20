/*
 * Who else is on this GPU. A tenant is a container or a slice; it has a folder with its terms, which its host has
 * written, and with the presence of its processes, which these write themselves (tenants/presence.h): all others only
 * read both. A tenant may lie in its file, but about its presence alone.
 *
 * Nobody waits for anybody by it: it decides for how long each has the GPU at a time where several want it, and which
 * part of it falls to a tenant whose limit is a weight.
 */
#pragma once

#include "shared/shared_file.h"

#include <stdint.h>

/* How old may be what we know of the others, and what they know of us: a refresh reads a file of each. */
#define TENANTS_KNOWN_NS 10000000LL

/* A tenant's limit, policy and priority. */
struct tenant_terms {
  uint32_t percent;  /* its limit or, with VGPU_SM_BURST, its weight; VGPU_NO_SM_LIMIT: what is left */
  uint16_t policy;   /* VGPU_SM_* */
  uint16_t priority; /* VGPU_PRIORITY_* */
};

/* The others that are at work, as the last refresh found them. */
struct tenants_view {
  bool higher_priority; /* another tenant, of a higher priority than ours */
  bool peer;            /* another one, of ours or of a lower one */
  int siblings;         /* other processes of our tenant */
  int tenants;          /* others, which count once, whatever they say */
};

/* Opens our tenant's files for a process with that slot in its usage file, on a device with that number in the tenant's
 * limits, where `uuid` may change. `usage` is what all processes of the tenant share. NULL where that cannot be, which
 * is said on stderr. */
struct tenants *tenants_open(const char *uuid, int device, const struct shared_file *usage, int slot);

/* Says that we are at work, and returns who else is. NULL has none. A thread for which no launch waits has time to look
 * for others among thousands of folders: 20,000 take 2 s, and else half a minute. */
struct tenants_view tenants_refresh(struct tenants *tenants, bool has_time);

/* Takes our terms, and tells the share of the GPU's time, 1 to 100, that falls to this tenant now. By its own limit
 * while that is hard; else by the limits of those that are there and not of lower priority: without a limit what is
 * left, split evenly; with VGPU_SM_BURST its limit, and of what nobody else's limit covers a part in proportion to it.
 */
uint32_t tenants_share_percent(struct tenants *tenants, const struct tenant_terms *terms);

/* Call in a forked child. */
void tenants_forget(struct tenants *tenants);

/* Gives the files up before others have been looked for. */
void tenants_close(struct tenants *tenants);
