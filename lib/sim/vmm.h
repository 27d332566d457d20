/* Virtual memory management: physical memory and the addresses that it is mapped to are apart. */
#pragma once

#include "cuda_api.h"
#include "regions.h"

/* Physical memory lives while its handle, a mapping, or what it is bound to does. */
struct physical {
  CUmemGenericAllocationHandle handle;
  unsigned device; /* the device that pays for it, or that it is nearest to */
  bool on_host;
  size_t size;
  unsigned references; /* the program's */
  unsigned mappings;   /* and what it is bound to */
  CUmemAllocationProp properties;
  uint64_t shared_id; /* shared with other processes; 0: not */
  bool imported;
};

struct physical *vmm_find(CUmemGenericAllocationHandle handle);

/* A handle for memory that this process has, or has imported: NULL without memory for it. It has one reference. */
struct physical *vmm_new(struct physical physical);

/* The program gives up a reference. */
void vmm_release(struct physical *physical);

void vmm_hold(struct physical *physical);
void vmm_let_go(struct physical *physical);

struct mapping {
  uintptr_t base;
  size_t size;
  struct physical *physical;
  bool accessible; /* cuMemSetAccess was called for it */
  struct mapping *next;
};

/* The mapping at an address of a reservation; NULL when nothing is mapped there. */
struct mapping *vmm_mapping_at(const struct region *reservation, uintptr_t address);
