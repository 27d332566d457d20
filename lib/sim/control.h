/*
 * The driver's control device, "nvidiactl": what libcuda allocates its channels by, and what others who have its
 * descriptor may switch them by. A call is an ioctl, which a preloaded library sees, and answers on a descriptor of the
 * device wherever that has come from; it says which client of which process it is.
 */
#pragma once

#include "common.h"

/* In cuInit: opens the device, unless the configuration says that it cannot be opened. */
bool control_open(void);

/* Allocates the channels of a new context; group is the row of their group (groups.h). */
bool control_make_channels(unsigned device, unsigned *group);
void control_free_channels(unsigned group);
