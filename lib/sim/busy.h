/* How many of the last thousand milliseconds a device was busy, in percent, as NVML tells it. */
#ifndef SIM_BUSY_H
#define SIM_BUSY_H

#include "state.h"

/* Percent of the last second in which the device was busy with one slot's work or, for STATE_NO_SLOT, with any. */
unsigned busy_percent(unsigned device, unsigned slot);

#endif
