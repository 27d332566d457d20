/*
 * For how much of the time the GPU computed, by its own counter: the driver's utilization samples, five a second. Where
 * a process is alone on its GPU, its context stays there with nothing to do, and a program that launches small kernels
 * has gaps between them while it has work: neither the records nor the launches show those.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

struct gpu_sample {
  int64_t ended_ns; /* of CLOCK_REALTIME */
  uint32_t percent; /* of the time since the sample before; rounded down */
};

/* Gives the samples that ended after since_ns, the oldest first, and returns how many; below zero: there will be none.
 * The driver takes 1.6 ms for the answer on an H200. */
#define SAMPLES_MOST 128
typedef int samples_ask(const void *device, int64_t since_ns, struct gpu_sample samples[SAMPLES_MOST]);

/* What had been had by then, in all. */
struct samples_mark {
  int64_t at_ns; /* of CLOCK_REALTIME */
  int64_t had_ns;
};

#define SAMPLES_MARKS 256
struct samples {
  samples_ask *ask; /* NULL: nobody can */
  const void *device;
  struct samples_mark now, marks[SAMPLES_MARKS];
  uint32_t mark_count;
  int64_t seen_ns;    /* when the last sample ended */
  int64_t company_ns; /* when others were there last, or may have been */
  int64_t asked_ns;
  int64_t credit_ns; /* what was had while the GPU did nothing, and has not been given back */
  double part;       /* of what was had in the last sample */
};

/* Notes that so much was had of the GPU until now, and returns what is to be charged: less, while there is credit, by
 * so much that it lasts until the next sample. So nobody ever has more than the GPU was at work for him. */
int64_t samples_charge(struct samples *samples, int64_t at_ns, int64_t had_ns);

/* Takes some of the credit, and no more than that, for what was charged before there was any. */
int64_t samples_give_back(struct samples *samples, int64_t most_ns);

/* Compares what has been charged with new samples, if there are any. Only what nobody else has had can be compared. */
void samples_look(struct samples *samples, bool is_alone);
