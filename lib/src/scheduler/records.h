/*
 * When the GPU worked for this process, as the GPU itself has recorded it: the driver's context switch records (class
 * NV_EVENT_BUFFER), which a process may read of its own user's contexts without any privilege. They have the GPU's own
 * time, and come at once when they are asked for. A context that nobody else drives away stays on the GPU when it has
 * nothing to do, and has no records then.
 */
#pragma once

#include "scheduler/channels.h"

struct records {
  struct rm_client client;
  uint32_t subdevice, next;
  const volatile struct records_header *header; /* NULL: there are none */
  const volatile unsigned char *ring;
  uint32_t generation; /* of the objects, when the numbers were asked for */
  uint32_t numbers[CHANNELS_MOST_CHANNELS], number_count;
  bool is_on;           /* one of our contexts is on the GPU, or may be */
  bool is_other_on;     /* another one of our user's is */
  int64_t on_since_ns;  /* by the GPU's clock: what was before has been counted */
  int64_t off_since_ns; /* likewise, while the channels are off; else 0 */
  bool are_lost;        /* the driver has freed them */
  bool ran_while_off;   /* though it was to be off */
  bool has_come;        /* any, of ours or of others, at the last reading */
  bool is_complete;     /* the last reading was of all until then */
  int64_t came_at_ns;   /* by the host's clock: when some did that others had asked for */
  bool was_driven_away; /* one of our contexts has left the GPU; it is the reader's to say why */
};

/* False where the driver does not give them. A context that is there may be on the GPU: until a record tells. */
bool records_begin(struct records *records, const struct channels *gpu);
void records_end(struct records *records);

/* The channels have been taken off the GPU, and all records until then have been read. A context that had nothing to do
 * stays there, and neither that nor what it does when it is put back is recorded. */
void records_note_off(struct records *records, const struct channels *gpu);

/* They have been put back, and all records until then have been read. */
void records_note_on(struct records *records);

/* Returns for how long one of our contexts has been on the GPU since the last call, in nanoseconds: what the GPU has
 * recorded by now; nothing where there are no records. While the channels are off that is time in which it does
 * nothing. Unless all of it is asked for, who waits while another context is on the GPU takes what other
 * processes have asked for lately. */
int64_t records_read_ns(struct records *records, const struct channels *gpu, bool all);
