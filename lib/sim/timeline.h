/*
 * Time on a device. Work is pure arithmetic: it starts when its stream and its device are free and the clock has got
 * there, and ends after its duration. All processes share a device's timeline, first come, first served.
 */
#ifndef SIM_TIMELINE_H
#define SIM_TIMELINE_H

#include "common.h"

/* Queues work that cannot start before a given time; returns when it ends. */
uint64_t timeline_queue(unsigned device, uint64_t not_before_ns, uint64_t duration_ns);

/* How many of the last thousand milliseconds the device was busy, in percent: for one slot, or for all processes. */
unsigned timeline_busy_percent(unsigned device);
unsigned timeline_busy_percent_of(unsigned device, unsigned slot);

#endif
