/* Where a launch that opens a batch waits: while its device is paused, for tokens, for this process's turn, and for
 * room in flight. */
#ifndef VGPU_GATE_H
#define VGPU_GATE_H

#include "meter.h"

/* What the batch may be that begins now. */
struct gate_pass {
  int64_t open_until_ns; /* when launches have to ask at the gate again */
  bool in_company;       /* with processes with which turns are taken */
  bool is_one_launch;    /* and no more: work in flight makes no progress, and this may be what it waits for */
  bool is_free;          /* nobody else wants the GPU: nothing is held back, and it is not paid */
};

/* With the claim on the stream, whose batch is not open; a launch of that cost is to come. All waits are bounded, but
 * for a pause, which lasts as long as the host wants it. */
struct gate_pass gate_wait(struct meter_stream *stream, int64_t cost_ns);

/* Tells those who wait for our turn that we are at work: for as long as what is in flight may take, and more_ns. */
void gate_note_activity(struct meter *meter, int64_t more_ns);

/* A batch ended at that time. */
void gate_note_progress(struct meter *meter, int64_t end_ns, int64_t now_ns);

#endif
