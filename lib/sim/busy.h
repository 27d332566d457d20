/* For how much of a time a device was busy, in percent, as NVML tells it. */
#pragma once

#include "state.h"

/* Percent of the last second in which the device was busy with one slot's work or, for STATE_NO_SLOT, with any. */
unsigned busy_percent(unsigned device, unsigned slot);

/* The driver takes samples at multiples of so long, and rounds down. */
#define BUSY_SAMPLE_NS (NS_PER_S / 5)
#define BUSY_SAMPLES 5 /* available ones */

/* Likewise of any work, in the sample that ended at that time. */
unsigned busy_sample_percent(unsigned device, uint64_t end_ns);
