/* What threads store in the profile: records in the ring, and totals. No lock: each thread has a place of its own. */
#ifndef VGPU_PROFILE_RECORDS_H
#define VGPU_PROFILE_RECORDS_H

#include "profile_disk.h"

/* From now on records go there. NULL: nowhere. In a forked child, too, after that has given up its parent's. */
void profile_records_use(struct profile_disk *disk);

/* One record, or several that a reader is to find together. Only while a disk is in use. */
void profile_records_store(const struct profile_record *records, uint32_t count);

/* A call in the totals. */
struct profile_result {
  uint16_t api;
  bool failed;
  uint64_t bytes;
  uint64_t duration_ns;
};
void profile_records_count(const struct profile_result *result);

#endif
