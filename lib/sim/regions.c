#include "regions.h"

#include <search.h>
#include <stdlib.h>
#include <sys/mman.h>

#include "config.h"

/* All regions: a tree by address, and a list to walk. */
struct listed {
  struct region region; /* first: a region is its entry */
  struct listed *next, **link;
};

static void *tree;
static struct listed *list;

/* Regions never overlap, so that "equal" can mean "overlaps". */
static int compare(const void *left, const void *right) {
  const struct region *a = left, *b = right;
  if (a->base + a->size <= b->base)
    return -1;
  return b->base + b->size <= a->base ? 1 : 0;
}

struct region *region_find(uintptr_t address) {
  struct region key = {.base = address, .size = 1};
  struct region **found = tfind(&key, &tree, compare);
  return found ? *found : NULL;
}

bool region_overlaps(uintptr_t base, size_t size) {
  struct region key = {.base = base, .size = size};
  return tfind(&key, &tree, compare) != NULL;
}

struct region *region_new_at(enum region_kind kind, uintptr_t base, size_t size) {
  static uint64_t last_id;
  struct listed *entry = calloc(1, sizeof *entry);
  if (!entry)
    return NULL;
  entry->region = (struct region){.kind = kind, .base = base, .size = size, .id = ++last_id};
  struct region **stored = tsearch(&entry->region, &tree, compare);
  if (!stored || *stored != &entry->region) {
    free(entry);
    return NULL;
  }
  entry->next = list;
  entry->link = &list;
  if (list)
    list->link = &entry->next;
  list = entry;
  return &entry->region;
}

/* Address space in steps of a device page, and aligned to it. */
static uintptr_t map_aligned(size_t size, int protection, int flags) {
  flags |= MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE;
  char *mapped = mmap(NULL, size + DEVICE_PAGE, protection, flags, -1, 0);
  if (mapped == MAP_FAILED)
    return 0;
  uintptr_t start = (uintptr_t)mapped;
  uintptr_t base = round_up(start, DEVICE_PAGE);
  if (base > start)
    munmap(mapped, base - start);
  munmap((void *)(base + size), start + DEVICE_PAGE - base);
  return base;
}

struct region *region_new(enum region_kind kind, size_t size, enum region_data data, bool below_4_gib) {
  bool keep = data == KEEP_ALWAYS || (data == KEEP_IF_SMALL && size <= sim_config.kept_data_bytes);
  int flags = 0;
  if (below_4_gib) {
#ifdef MAP_32BIT
    flags = MAP_32BIT;
#else
    return NULL;
#endif
  }
  if (size == 0 || size > SIZE_MAX / 4)
    return NULL;
  size_t mapped = round_up(size, DEVICE_PAGE);
  uintptr_t base = map_aligned(mapped, keep ? PROT_READ | PROT_WRITE : PROT_NONE, flags);
  if (!base)
    return NULL;
  struct region *region = region_new_at(kind, base, size);
  if (!region) {
    munmap((void *)base, mapped);
    return NULL;
  }
  region->mapped = mapped;
  region->keeps_data = keep;
  return region;
}

void region_delete(struct region *region) {
  struct listed *entry = (struct listed *)region;
  tdelete(region, &tree, compare);
  *entry->link = entry->next;
  if (entry->next)
    entry->next->link = entry->link;
  if (region->mapped)
    munmap((void *)region->base, region->mapped);
  free(entry);
}

void region_visit(region_visitor visit, void *argument) {
  struct listed *next;
  for (struct listed *entry = list; entry; entry = next) {
    next = entry->next;
    visit(&entry->region, argument);
  }
}
