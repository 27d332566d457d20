/* Address ranges that the driver handed out, and the host memory that stands behind them. */
#pragma once

#include "common.h"

#define DEVICE_PAGE (2 * MIB) /* the step in which a device gives memory */

enum region_kind {
  REGION_DEVICE, /* an allocation in device memory */
  REGION_BLOCK,  /* 2 MiB that small allocations share */
  REGION_GRAPH,  /* a graph node's, with memory behind it while `live` */
  REGION_MANAGED,
  REGION_HOST,        /* page-locked host memory */
  REGION_REGISTERED,  /* the program's own host memory */
  REGION_RESERVATION, /* addresses for cuMemMap */
  REGION_IMPORTED,    /* another process's memory */
};

struct block;
struct context;
struct pool;
struct mapping;

struct region {
  uintptr_t base;
  size_t size;    /* requested by the program */
  size_t mapped;  /* bytes of address space that are ours to give back; 0: none */
  size_t charged; /* bytes of device memory that go back when the region goes */
  enum region_kind kind;
  unsigned device;
  unsigned flags;                /* host memory's */
  bool keeps_data;               /* copies into it can be read back */
  void *checkpointed;            /* its data, while the process is off its GPUs; NULL: nothing is put away */
  const struct context *context; /* the context that it goes with; NULL: none */
  struct pool *pool;             /* owner of its memory; NULL: none */
  struct block *block;           /* a REGION_BLOCK's */
  struct mapping *mappings;      /* a REGION_RESERVATION's */
  bool stays_on_host;            /* a REGION_MANAGED's */
  bool live;                     /* a REGION_GRAPH's, like the next */
  unsigned holders;              /* nodes that allocate or free it */
  uint64_t shared_id;            /* shared with other processes; 0: not */
  uint64_t id;
};

/* Makes a region with address space of its own. It keeps data when it is small enough, or must (always_keep).
 * Below 4 GiB where the first version of the API needs it. NULL when there is no address space or memory. */
enum region_data { KEEP_IF_SMALL, KEEP_ALWAYS, KEEP_NEVER };
struct region *region_new(enum region_kind kind, size_t size, enum region_data data, bool below_4_gib);

/* A region over memory that is not ours. */
struct region *region_new_at(enum region_kind kind, uintptr_t base, size_t size);

void region_delete(struct region *region);

/* The region that holds an address; NULL when none does. */
struct region *region_find(uintptr_t address);

/* Whether a range touches a region. */
bool region_overlaps(uintptr_t base, size_t size);

typedef void (*region_visitor)(struct region *region, void *argument);
void region_visit(region_visitor visit, void *argument); /* visit may delete the region that it is given */
