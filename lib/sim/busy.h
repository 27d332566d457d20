/* How busy devices and processes were in the last second, as NVML tells it. */
#ifndef SIM_BUSY_H
#define SIM_BUSY_H

#include "state.h"

/* Work of a process ran on a device for that time. */
void busy_record(struct state_process_device *own, uint64_t start_ns, uint64_t end_ns);

/* How many of the last thousand milliseconds the device was busy, in percent: for one slot, or for all processes. */
unsigned busy_percent(unsigned device);
unsigned busy_percent_of(unsigned device, unsigned slot);

#endif
