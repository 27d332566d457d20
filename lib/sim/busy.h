/* How many of the last thousand milliseconds a device was busy, in percent, as NVML tells it. */
#ifndef SIM_BUSY_H
#define SIM_BUSY_H

#include "state.h"

/* With the work of one slot, or, with STATE_NO_SLOT, of all. */
unsigned busy_percent(unsigned device, unsigned slot);

#endif
