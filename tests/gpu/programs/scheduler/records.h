/*
 * When the GPU worked for this process, as the GPU itself has recorded it: the driver's context switch records (class
 * NV_EVENT_BUFFER), which a process may read of its own user's contexts without any privilege. They have the GPU's own
 * time, and come at once when they are asked for. A context that nobody else drives away stays on the GPU when it has
 * nothing to do, and has no records then.
 */
#ifndef SCHEDULER_RECORDS_H
#define SCHEDULER_RECORDS_H

#include "channels.h"

struct records {
  struct rm_client client; /* file -1: there are none */
  uint32_t subdevice, next;
  const volatile struct records_header *header;
  const volatile unsigned char *ring;
  uint32_t generation; /* of the objects, when the numbers were asked for */
  uint32_t numbers[OBJECTS_MOST_CHANNELS], number_count;
  bool is_on;          /* one of our contexts is on the GPU, or may be */
  int64_t on_since_ns; /* by the GPU's clock: what was before has been counted */
};

/* False where the driver does not give them. */
bool records_begin(struct records *records, const struct objects_gpu *gpu);

/* The channels have been taken off the GPU: nothing of ours is on it, whatever the records said last. */
void records_note_off(struct records *records, const struct objects_gpu *gpu);

/* Returns for how long one of our contexts has been on the GPU since the last call, in nanoseconds. */
int64_t records_read_ns(struct records *records, const struct objects_gpu *gpu);

#endif
