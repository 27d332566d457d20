/* Where a launch that opens a batch waits: while its device is paused, for tokens and this process's turn, and for room
 * in flight. */
#ifndef VGPU_GATE_H
#define VGPU_GATE_H

#include "meter.h"

/* Some return how long it took, in nanoseconds. All but the first are bounded. */
int64_t gate_wait_while_paused(struct meter *meter); /* as long as the host wants it, which is no bound of ours */
void gate_wait_for_unmeasured(const struct meter_stream *stream); /* that is on the GPU since before we measured */
int64_t gate_wait_for_share(struct meter_stream *stream);         /* for tokens and, with them, the turn */
void gate_wait_for_room(const struct meter_stream *stream);

/* Who has passed says to the others that it is at work for so long, with more than what is in flight. Then the turn may
 * be taken from it, and whoever launches later has to ask again. */
#define GATE_PASSED_NS METER_BATCH_NS

/* What a batch may be that begins now. Launches that nobody holds back run ahead as far as they can be measured: the
 * further ahead, the more of them are measured together. In company markers are spared, until the slice is used up. */
struct gate_pass {
  int64_t batch_ns;      /* how long */
  int64_t open_until_ns; /* when launches have to ask at the gate again */
  bool is_free;          /* nothing is held back, and all measured for a profile alone */
};
struct gate_pass gate_pass(struct meter *meter, int64_t now_ns);

/* Tells those who wait for our turn that we are at work: for as long as what is in flight may take, and more_ns. */
void gate_note_activity(struct meter *meter, int64_t more_ns);

#endif
